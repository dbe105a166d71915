"""A training script with a slow loader, whose work and whose device only wait.

Preparation takes `--prepare-ms` a sample and no core, so that hosts of many cores fit on a small
machine: as many workers as `--workers` says are as many cores. A step keeps the device busy for
`--step-ms`, and is waited for.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    """Samples that take a while, some of them twice as long as others."""

    def __init__(self, count: int, prepare_s: float) -> None:
        self.count, self.prepare_s = count, prepare_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.prepare_s * (2 / 3 + 2 / 3 * (index * 7919 % 101) / 101))
        return torch.full((64,), index / self.count)


def main() -> None:
    """Train, and print each epoch's seconds and samples."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, required=True, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prepare-ms", type=float, default=40.0)
    parser.add_argument("--step-ms", type=float, default=20.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = nn.Linear(64, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = Samples(options.samples, options.prepare_ms / 1000)
    loader = DataLoader(
        data, options.batch, shuffle=True, num_workers=options.workers, persistent_workers=True
    )
    for epoch in range(options.epochs):
        began_s, samples = time.perf_counter(), 0
        for x in loader:
            time.sleep(options.step_ms / 1000)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            samples += len(x)
        result = {"epoch": epoch, "samples": samples, "seconds": time.perf_counter() - began_s}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
