import numpy as np
from torch.utils.data import Sampler


class AdaptiveBalance(Sampler):
    """Draws rare samples more often, and each that was drawn half as often from then on."""

    def __init__(self, labels, draws, decay=0.5, seed=0):
        counts = np.bincount(labels)
        self.weights = 1.0 / counts[labels]
        self.draws, self.decay = draws, decay
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return self.draws

    def _draw(self):
        pick = int(self.rng.choice(len(self.weights), p=self.weights / self.weights.sum()))
        self.weights[pick] *= self.decay
        return pick

    def __iter__(self):
        for _ in range(self.draws):
            yield self._draw()
