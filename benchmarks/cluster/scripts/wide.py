"""Takes big batches and does nothing with them: what is left is how they come.

The host that trains makes few of them itself, so that others' are what is measured.
"""

from __future__ import annotations

import argparse
import functools
import json
import time

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader, Dataset

SHAPE = (64, 3, 224, 224)
HERE_S = 0.100


@functools.cache
def ready_batch() -> torch.Tensor:
    """Return one batch, made once in each worker."""
    return torch.from_numpy(np.random.default_rng(0).integers(0, 255, SHAPE, dtype=np.uint8))


@functools.cache
def own_address() -> str:
    """Return the address of the host that this process is on."""
    return next(each.address for each in psutil.net_if_addrs()["eth0"] if "." in each.address)


class Batches(Dataset):
    """Each sample stands for a batch; `trains_on` makes its own slowly."""

    def __init__(self, count: int, trains_on: str) -> None:
        self.count, self.trains_on = count, trains_on

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, str]:
        if own_address() == self.trains_on:
            time.sleep(HERE_S)
        return ready_batch(), own_address()


def main() -> None:
    """Run epochs; print of each how many images came from other hosts, and what that cost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    loader = DataLoader(Batches(options.batches, own_address()), batch_size=None, num_workers=1)
    for epoch in range(options.epochs):
        began_s, cpu_s, received = time.perf_counter(), time.process_time(), 0
        for images, host in loader:
            assert images.shape == SHAPE
            assert images.dtype == torch.uint8
            received += host != own_address()
        result = {
            "epoch": epoch,
            "samples": received * SHAPE[0],
            "seconds": time.perf_counter() - began_s,
            "cpu_seconds": time.process_time() - cpu_s,
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
