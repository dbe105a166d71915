import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler


def make_items(n, n_classes, size, seed=7):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, size=n)
    prototypes = rng.integers(40, 215, size=(n_classes, 3, size, size))
    noise = rng.integers(-40, 41, size=(n, 3, size, size), dtype=np.int16)
    return (prototypes[labels] + noise).astype(np.uint8), labels


class TripletImages(Dataset):
    """Its index is a triplet: (anchor, positive, negative)."""

    def __init__(self, images):
        self.images = images

    def _get(self, i):
        image = self.images[i]
        if np.random.random() < 0.5:
            image = image[:, :, ::-1]
        return torch.from_numpy(image.astype(np.float32) / 255)

    def __getitem__(self, triplet):
        return torch.stack([self._get(i) for i in triplet]), torch.tensor(triplet)


class TripletSampler(Sampler):
    def __init__(self, triplets, seed=0):
        self.triplets = triplets
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return len(self.triplets)

    def __iter__(self):
        for k in self.rng.permutation(len(self.triplets)):
            yield self.triplets[k]


def triplet_loader(images, sampler, batch_size, workers):
    return DataLoader(
        TripletImages(images),
        batch_size=batch_size,
        sampler=sampler,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
