"""Ranks that share an auxiliary host, one of whose workers takes ten times as long as usual."""

from __future__ import annotations

import argparse
import json
import os
import time

import psutil
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

PREPARE_S = 0.040
SLOWER = 10


class Samples(Dataset):
    """Samples that take a while; with worker 0 of rank 0 on another host they take much longer."""

    def __init__(self, count: int, rank: int, *, with_slow: bool) -> None:
        self.count, self.has_slow, self.trainer = count, with_slow and rank == 0, os.getpid()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, bool]:
        is_here = psutil.Process(os.getppid()).ppid() == self.trainer
        info = get_worker_info()
        is_slow = self.has_slow and not is_here and info is not None and info.id == 0
        time.sleep(PREPARE_S * (SLOWER if is_slow else 1))
        return index, is_here


def main() -> None:
    """Run the epochs on each rank; rank 0 prints how long the slowest one took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--slow", type=int, required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    samples = Samples(options.samples, dist.get_rank(), with_slow=bool(options.slow))
    sampler = DistributedSampler(samples)
    loader = DataLoader(samples, options.batch, sampler=sampler, num_workers=options.workers)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        dist.barrier()
        began_s, seen = time.perf_counter(), 0
        for indices, _ in loader:
            seen += len(indices)
        took_s = time.perf_counter() - began_s
        dist.barrier()
        results: list = [None] * dist.get_world_size()
        dist.all_gather_object(results, (seen, took_s))
        if dist.get_rank() == 0:
            seconds = [each for _, each in results]
            print(json.dumps({"epoch": epoch, "samples": sum(count for count, _ in results),
                              "seconds": max(seconds), "first_seconds": min(seconds)}),
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
