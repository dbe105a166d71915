"""Many short epochs over a small data set."""

import time

import torch
from options import loader_for, options, train
from torch.utils.data import Dataset


class Small(Dataset):
    """A few rows, each a moment away."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((64,), float(index)), index % 10


chosen = options(batch_size=8, workers=2, epochs=14, steps=16, step_ms=15.0)
train(loader_for(Small(chosen.steps * chosen.batch_size), chosen), chosen)
