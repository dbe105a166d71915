import random

import numpy as np
from torch.utils.data import Sampler


class RareClassSampler(Sampler):
    """Draws without replacement; an image's chance goes with its weight."""

    def __init__(self, weights, num_samples, seed=0):
        self.weights = [float(w) for w in weights]
        self.num_samples = num_samples
        self.random = random.Random(seed)

    def __len__(self):
        return self.num_samples

    def _draw(self, left):
        weights = self.weights
        total = 0.0
        for i in left:
            total += weights[i]
        ticket = self.random.random() * total
        at = 0
        for at, i in enumerate(left):
            ticket -= weights[i]
            if ticket <= 0:
                break
        return left.pop(at)

    def __iter__(self):
        left = list(range(len(self.weights)))
        for _ in range(self.num_samples):
            yield self._draw(left)


class KeyedRareClassSampler(RareClassSampler):
    """The same distribution, all draws at once (Efraimidis and Spirakis, 2006)."""

    def __iter__(self):
        rng = np.random.default_rng(self.random.getrandbits(32))
        keys = np.log(rng.random(len(self.weights))) / np.asarray(self.weights)
        yield from np.argsort(-keys)[: self.num_samples].tolist()


SAMPLERS = {"draw": RareClassSampler, "keys": KeyedRareClassSampler}
