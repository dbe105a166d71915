import numpy as np


def random_triplets(labels, rng):
    labels = np.asarray(labels)
    members = {c: np.flatnonzero(labels == c) for c in np.unique(labels)}
    others = {c: np.flatnonzero(labels != c) for c in members}
    return [(i, int(rng.choice(members[c])), int(rng.choice(others[c]))) for i, c in enumerate(labels.tolist())]


def mined_triplets(bank, labels, rng, pool):
    """For each anchor a far positive and a near ("hard") negative, by the embeddings' bank."""
    labels = [int(c) for c in labels]
    triplets = []
    for i, own in enumerate(labels):
        distance = np.square(bank - bank[i]).sum(axis=1)
        order = np.argsort(distance).tolist()
        positives, negatives = [], []
        for j in order[1:]:
            if labels[j] == own:
                positives.append(j)
            elif len(negatives) < pool:
                negatives.append(j)
        far = positives[-1] if positives else i
        triplets.append((i, far, negatives[int(rng.integers(len(negatives)))]))
    return triplets
