"""Trains with transforms that take a while; tells how many batches were made where."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter

import numpy as np
import torch
from torch.utils.data import DataLoader

BATCHES, BATCH = 120, 4


def wait_a_little(sample: np.ndarray) -> np.ndarray:
    time.sleep(0.005)
    return sample


class Turned:
    def __call__(self, sample: np.ndarray) -> np.ndarray:
        return np.flip(sample, -1).copy()


class Samples:
    """Needs no torch, so that processes which make its samples start without it."""

    def __init__(self) -> None:
        self.transforms = [wait_a_little, Turned()]

    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, index: int):
        sample = np.full(64, index % 7, np.float32)
        for transform in self.transforms:
            sample = transform(sample)
        return sample, os.environ.get("SERVER", "here")


if __name__ == "__main__":
    loader = DataLoader(Samples(), batch_size=BATCH, shuffle=True, num_workers=1)
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    made: Counter[str] = Counter()
    for _ in range(int(sys.argv[1])):
        for samples, makers in loader:
            optimizer.zero_grad()
            model(samples).pow(2).mean().backward()
            optimizer.step()
            made[makers[0]] += 1
    sys.stdout.write("made " + json.dumps(made) + "\n")
