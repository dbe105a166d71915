import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from .sampling import AdaptiveBalance


class Labelled(Dataset):
    def __init__(self, size):
        self.labels = np.random.default_rng(1).geometric(0.3, size) % 10

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.randn(3, 16, 16), int(self.labels[i])


class Unlabelled(Dataset):
    """Two views of each picture."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def weak_view(self, picture):
        return picture.flip(-1)

    def strong_view(self, picture):
        time.sleep(0.0004)  # a read
        spectrum = torch.fft.rfft2(picture.repeat(1, 4, 4))
        return torch.fft.irfft2(spectrum * torch.rand_like(spectrum.real))[:, :16, :16]

    def __getitem__(self, i):
        picture = torch.randn(3, 16, 16)
        return self.weak_view(picture), self.strong_view(picture)


def loaders(steps, batch, labelled_size=300_000):
    labelled = Labelled(labelled_size)
    sampler = AdaptiveBalance(labelled.labels, draws=steps * batch)
    return (
        DataLoader(labelled, batch, sampler=sampler, num_workers=1, drop_last=True),
        DataLoader(Unlabelled(steps * batch), batch, shuffle=True, num_workers=1, drop_last=True),
    )
