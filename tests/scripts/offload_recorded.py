"""Trains with transforms that take a while; tells how many batches were made where."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter

import torch
from torch.utils.data import DataLoader, Dataset

BATCHES, BATCH = 120, 4


def wait_a_little(sample: torch.Tensor) -> torch.Tensor:
    time.sleep(0.005)
    return sample


class Turned:
    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        return sample.flip(-1)


class Samples(Dataset):
    def __init__(self) -> None:
        self.transforms = [wait_a_little, Turned()]

    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, index: int):
        sample = torch.full((64,), float(index % 7))
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
