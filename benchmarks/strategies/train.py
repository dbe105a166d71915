"""Trains one epoch in one of the reference's ways, on real devices or on emulated ones.

An emulated device (--emulate) takes a batch in BATCH / RATE seconds, in which the process sleeps.
Every rank trains a small model for real beside that, so that ranks average gradients. With `dp` one
process loads the global batch of all devices, splits and copies it for each, and all devices work
at once.

On CUDA devices a small convolutional net is trained, by headrace.prepare: nn.DataParallel over all
of them, or a rank on each, over nccl.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import headrace
from headrace.data.transforms import RandomResizedCrop
from headrace.data.transforms.decode import decode_image

SIZE = 224


class Files(Dataset):  # type: ignore[type-arg]
    """Images in class folders, opened one by one: as most scripts do it."""

    def __init__(self, folder: str) -> None:
        self._paths = sorted(Path(folder).glob("class_*/*.jpg"))
        self._crop = RandomResizedCrop(SIZE)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self._paths[index]
        image = self._crop(decode_image(path.read_bytes()))
        return torch.from_numpy(image), int(path.parent.name[-2:])


def batches_of_files(options: argparse.Namespace, batch: int) -> tuple[int, Iterable]:  # type: ignore[type-arg]
    """Return how many files there are, and torch's loader of them."""
    dataset = Files(options.data)
    sampler = DistributedSampler(dataset) if options.strategy in {"ddp", "fsdp"} else None
    loader = DataLoader(
        dataset, batch, shuffle=sampler is None, sampler=sampler, drop_last=True,
        num_workers=options.workers,
    )  # fmt: skip
    return len(dataset), loader


def batches_of_shards(options: argparse.Namespace, batch: int) -> tuple[int, Iterator]:  # type: ignore[type-arg]
    """Return how many samples there are, and Headrace's loader of them."""
    transform = headrace.transforms.OnMembers("jpg", RandomResizedCrop(SIZE))
    dataset = headrace.ShardDataset(options.data, transform=transform, cache_dir=None)
    loader = headrace.DataLoader(
        dataset, batch, shuffle=True, drop_last=True, num_workers=options.workers
    )
    return len(dataset), ((each["jpg"], each["cls"]) for each in loader)


def emulated_step(options: argparse.Namespace, devices: int) -> Callable[..., None]:
    """Return what trains on a batch as on so many emulated devices."""
    net = nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(3 * 8 * 8, 10))
    spread = options.strategy if options.strategy in {"ddp", "fsdp"} else "none"
    train = trains(headrace.prepare(net, spread, "cpu"))  # type: ignore[arg-type]

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        began = time.perf_counter()
        # What DataParallel does to each batch: a copy of its part for each device.
        parts = [part.clone() for part in images.chunk(devices)]
        train(parts[0], labels.chunk(devices)[0])
        device_s = len(parts[0]) / options.rate  # all devices work at once
        time.sleep(max(0.0, device_s - (time.perf_counter() - began)))

    return step


def cuda_step(options: argparse.Namespace) -> Callable[..., None]:
    """Return what trains on a batch on the CUDA devices that this process sees."""
    net = nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=4), nn.ReLU(), nn.Conv2d(64, 128, 3, stride=2), nn.ReLU(),
        nn.Conv2d(128, 256, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    spread = "none" if options.strategy == "single" else options.strategy
    train = trains(headrace.prepare(net, spread, "cuda"))

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        train(images.cuda(non_blocking=True), labels.cuda(non_blocking=True))

    return step


def trains(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Return a step of training on images, height by width by colours."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        loss = nn.functional.cross_entropy(model(images.permute(0, 3, 1, 2).float()), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    """Train one epoch and print how long it took, from the first `iter` on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", choices=["single", "dp", "ddp", "fsdp"], required=True)
    parser.add_argument(
        "--data", default=os.environ.get("SM_CHANNEL_TRAIN"),
        help="A folder of files, or a dataset's URL; by default the channel train.",
    )  # fmt: skip
    parser.add_argument("--shards", action="store_true")
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--batch", type=int, default=32, help="Of one device.")
    parser.add_argument("--emulate", action="store_true", help="Devices are sleeps.")
    parser.add_argument("--rate", type=float, default=100, help="Images/s of an emulated device.")
    parser.add_argument("--workers", type=int, default=2, help="Of each process.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    devices_here = options.devices if options.strategy == "dp" else 1
    # First: this is where ranks meet.
    step = emulated_step(options, devices_here) if options.emulate else cuda_step(options)
    make = batches_of_shards if options.shards else batches_of_files
    count, batches = make(options, options.batch * devices_here)
    began = time.perf_counter()
    seen = 0
    for images, labels in batches:
        step(images, labels)
        seen += len(labels)
    if not options.emulate:
        torch.cuda.synchronize()  # with dp, too: the first device waits for all gradients
    seconds = time.perf_counter() - began
    result = {"epoch": 1, "seconds": seconds, "samples": seen, "of": count}
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
