import numpy as np
from torch.utils.data import Sampler


class MultiScaleBatchSampler(Sampler):
    """Every batch has a side of its own."""

    def __init__(self, n, batch_size, sides, seed=0):
        self.n, self.batch_size, self.sides = n, batch_size, sides
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return self.n // self.batch_size

    def __iter__(self):
        order = self.rng.permutation(self.n)[: len(self) * self.batch_size]
        for batch in order.reshape(len(self), self.batch_size):
            side = int(self.rng.choice(self.sides))
            yield [(int(i), side) for i in batch]


def cycle(loader):
    while True:
        yield from loader
