"""Trains with transforms that take a while; prints how many batches were made where.

python offload_recorded.py EPOCHS [iterable]: afterwards it iterates an iterable dataset for less
than a second, once others have a part in that. Making map-style samples needs no torch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

BATCHES, BATCH = 120, 4


def wait_a_little(sample: np.ndarray) -> np.ndarray:
    time.sleep(0.005)
    return sample


class Turned:
    def __call__(self, sample: np.ndarray) -> np.ndarray:
        return np.flip(sample).copy()


class Samples:
    def __init__(self) -> None:
        self.transforms = [wait_a_little, Turned()]

    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, index: int):
        sample = np.full(64, index % 7, np.float32)
        for transform in self.transforms:
            sample = transform(sample)
        return sample, os.environ.get("SERVER", "here")


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for index in range(info.id, 64, info.num_workers):
            time.sleep(0.005)
            yield torch.full((64,), float(index)), os.environ.get("SERVER", "here")


def train(epochs: int) -> Counter[str]:
    """Train, and go on until others have a part; with 0 epochs only iterate until then."""
    loader = DataLoader(Samples(), batch_size=BATCH, shuffle=True, num_workers=1)
    made: Counter[str] = Counter()
    take = training_step() if epochs else lambda _: None
    others = int(os.environ.get("OTHERS_FIRST", "0"))  # on a busy machine they come late
    for epoch in range(epochs + 20):
        if epoch >= epochs and len(made.keys() - {"here"}) >= others:
            break
        for samples, makers in loader:
            take(samples)
            made[makers[0]] += 1
    return made


def training_step() -> Callable[[torch.Tensor], None]:
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)  # imports much of torch

    def step(samples: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(samples).pow(2).mean().backward()
        optimizer.step()

    return step


def iterate() -> Counter[str]:
    loader = DataLoader(Stream(), batch_size=4, num_workers=2)
    for _ in range(20):  # a busy host may come late to the first, which does not wait for long
        made = Counter(makers[0] for _, makers in loader)
        if made.keys() - {"here"}:
            break
    return made


if __name__ == "__main__":
    sys.stdout.write("made " + json.dumps(train(int(sys.argv[1]))) + "\n")
    if "iterable" in sys.argv:
        sys.stdout.write("iterated " + json.dumps(iterate()) + "\n")
