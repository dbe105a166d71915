"""A data-parallel training script whose preparation and whose device only wait.

Preparation takes `--prepare-ms` a sample and no core. A step keeps the device of each rank busy for
`--step-ms`, by up to `--jitter` of that longer, for each rank anew; every tenth step takes a fifth
longer on all ranks, as those do that log. Gradients are synchronised by DDP over gloo.
"""

from __future__ import annotations

import argparse
import json
import random
import time

import torch
import torch.distributed as dist
from advised import Samples  # beside this file
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    """Train, and print seconds and samples of all ranks from step `--warm-up` on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prepare-ms", type=float, default=40.0)
    parser.add_argument("--step-ms", type=float, default=100.0)
    parser.add_argument("--jitter", type=float, default=0.2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = Samples(options.steps * options.batch * world, options.prepare_ms / 1000)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, options.batch, sampler=sampler, num_workers=options.workers)
    own, began_s = random.Random(rank), 0.0
    for step, x in enumerate(loader):
        if step == options.warm_up:
            began_s = time.perf_counter()
        factor = 1 + options.jitter * own.random() + 0.2 * (step % 10 == 0)
        time.sleep(options.step_ms / 1000 * factor)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        seconds = time.perf_counter() - began_s
        samples = (options.steps - options.warm_up) * options.batch * world
        print(json.dumps({"epoch": 0, "samples": samples, "seconds": seconds}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
