from functools import cached_property

import torch
from torch.utils.data import Dataset

from .index import Index


class Shelf(Dataset):
    """Opens its index when the first sample is asked for."""

    def __init__(self, path, rows, difficulty=0):
        self.path, self.rows, self.difficulty = path, rows, difficulty

    @cached_property
    def index(self):
        return Index(self.path)

    def __len__(self):
        return self.rows

    def __getitem__(self, n):
        first, second = self.index.tags(n)
        x = torch.randn(48) * (1 + self.difficulty)
        x[0], x[1] = first, second
        return x
