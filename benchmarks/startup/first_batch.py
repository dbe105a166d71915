"""Prints what a loader's first batch took, two seconds after the loader was made: by run.py."""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from torch.utils.data import Dataset

import headrace


class Scaled:
    """A transform that needs torch."""

    def __call__(self, values: np.ndarray) -> torch.Tensor:  # noqa: D102 - what it is for says it
        return torch.nn.functional.relu(torch.as_tensor(values))


class Values(Dataset):
    """Rows of one number each."""

    def __init__(self) -> None:
        self.transform = Scaled()

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(np.full(64, index, np.float32))


if __name__ == "__main__":
    kind = headrace.DataLoader if sys.argv[1] == "headrace" else torch.utils.data.DataLoader
    loader = kind(Values(), batch_size=4, num_workers=2)
    time.sleep(2)  # what a script does before it trains: a model, an optimizer
    began_s = time.perf_counter()
    next(iter(loader))
    print(time.perf_counter() - began_s)
