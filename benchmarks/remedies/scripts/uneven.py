"""Documents in batches of like length: every eighth batch takes many times as long."""

import time

import torch
from options import loader_for, options, train
from torch.utils.data import Dataset


class Documents(Dataset):
    """Documents, read from far away; long ones take longer."""

    def __init__(self, chosen):
        self.count, self.batch_size = chosen.steps * chosen.batch_size, chosen.batch_size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        long = (index // self.batch_size) % 8 == 7
        time.sleep(0.020 if long else 0.001)
        return torch.full((64,), float(index)), index % 10


chosen = options(batch_size=8, workers=2, step_ms=16.0, steps=200)
train(loader_for(Documents(chosen), chosen), chosen)
