"""Train a ViT on random images with a plain torch DataLoader, whose preparation starves a GPU.

    headrace run --engine ray --group gpu=1:cpus=4 --group cpu=1:cpus=16 --offload cpu train.py

Nothing in it knows of Headrace.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from pace import Pace
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from vit import SHAPES, network

from images import RandomImages


def main() -> None:
    """Train for an epoch."""
    args = parse()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    model = network(args.model, device)
    if world > 1:
        dist.init_process_group()
        model = DistributedDataParallel(model)

    images = RandomImages(args.batch_size * args.steps * world)
    loader = DataLoader(
        images,
        batch_size=args.batch_size,
        num_workers=args.workers,
        sampler=DistributedSampler(images, shuffle=False) if world > 1 else None,
        pin_memory=device.type == "cuda",
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()

    model.train()
    pace = Pace(args.every)
    for batch, labels in loader:
        logits = model(batch.to(device, non_blocking=True)).logits
        loss = loss_of(logits, labels.to(device, non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if pace.step(loss):
            print(pace, flush=True)
    if world > 1:
        dist.destroy_process_group()


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train a ViT on random images.")
    add = parser.add_argument
    add("--batch-size", type=int, default=64, help="of each rank")
    add("--steps", type=int, default=1000, help="of each rank")
    add("--workers", type=int, default=os.cpu_count(), help="of each rank's loader")
    add("--every", type=int, default=100, help="steps between two lines about them")
    add("--model", choices=SHAPES, help="base on a GPU, tiny without one")
    return parser.parse_args()


if __name__ == "__main__":
    main()
