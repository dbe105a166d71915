"""A stream of sentences, tokenized by a loop over their letters."""

import torch
from options import loader_for, options, train
from torch.utils.data import IterableDataset, get_worker_info


class Sentences(IterableDataset):
    """Sentences: each worker takes its share."""

    def __init__(self, count, effort):
        self.count, self.effort = count, effort

    def __iter__(self):
        info = get_worker_info()
        first, every = (info.id, info.num_workers) if info else (0, 1)
        for number in range(first, self.count, every):
            yield tokenize(number, self.effort), number % 10


def tokenize(number, effort):
    """Return the counts of letters."""
    counts = [0.0] * 64
    for letter in "the mill wheel turns " * int(900 * effort):
        counts[(ord(letter) + number) % 64] += 1
    return torch.tensor(counts)


chosen = options(batch_size=12, step_ms=12.0)
train(loader_for(Sentences(chosen.steps * chosen.batch_size, chosen.effort), chosen), chosen)
