"""A training script whose preparation is ten real Gaussian blurs a sample, and a device to feed.

The samples are those of examples/ray_vit, whose `images.py` lies beside this file as it runs.
"""

from __future__ import annotations

import argparse
import json
import time

import psutil
from device import Device
from torch.utils.data import DataLoader

from images import RandomImages


def main() -> None:
    """Run the epochs, and print each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--device-rate", type=float, default=0.0)
    options = parser.parse_args()
    loader = DataLoader(
        RandomImages(options.samples), options.batch, shuffle=True, num_workers=options.workers
    )
    for epoch in range(options.epochs):
        began_s, device, samples, cpu_s = (
            time.perf_counter(),
            Device(options.device_rate),
            0,
            own_cpu_s(),
        )
        for images, _ in loader:
            device.step(len(images))
            samples += len(images)
        device.wait()
        result = {
            "epoch": epoch,
            "samples": samples,
            "seconds": time.perf_counter() - began_s,
            "device_seconds": device.busy_s,
            "cpu_seconds": own_cpu_s() - cpu_s,
        }
        print(json.dumps(result), flush=True)


def own_cpu_s() -> float:
    """Return the CPU time of this process and of all that it has started, in seconds."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(each.cpu_times()[:4]) for each in processes)  # ended children's, too


if __name__ == "__main__":
    main()
