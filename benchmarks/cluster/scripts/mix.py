"""A training script as its author wrote it: 40 ms of preparation a sample, and a device to feed.

Preparation waits and does not compute, so that many workers fit on a small machine; so does the
device, which takes `--device-rate` samples a second, or any number of them. As with an accelerator,
a step is begun without waiting for the one before it to end, but no more than one ahead.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import psutil
import torch
from device import Device
from torch.utils.data import DataLoader, Dataset

PREPARE_S = 0.040


class Samples(Dataset):
    """Samples that take a while, and return which process had their worker made."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(PREPARE_S)
        return torch.full((3, 32, 32), index % 251, dtype=torch.uint8), os.getppid()


def main() -> None:
    """Run the epochs, and print each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device-rate", type=float, default=0.0)
    options = parser.parse_args()
    loader = DataLoader(
        Samples(options.samples), options.batch, shuffle=True, num_workers=options.workers
    )
    for epoch in range(options.epochs):
        began_s, device, made_by = time.perf_counter(), Device(options.device_rate), []
        for images, makers in loader:
            device.step(len(images))
            made_by += makers.tolist()
        device.wait()
        took_s = time.perf_counter() - began_s
        own = {os.getpid()} | {child.pid for child in psutil.Process().children(recursive=True)}
        result = {
            "epoch": epoch,
            "samples": len(made_by),
            "seconds": took_s,
            "device_seconds": device.busy_s,
            "made_here": sum(maker in own for maker in made_by),
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
