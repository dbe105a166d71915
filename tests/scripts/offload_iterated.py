"""Iterates over iterable datasets as people write them: argv[1] workers here; tells what came.

The last lines end with who made what; all others are the same as with torch alone and as many
workers as there are here and elsewhere together.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from collections import Counter

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shared(IterableDataset):
    """Shares its samples among the workers of all ranks; some of them have more than others."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self):
        info = get_worker_info()
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        number, of = rank * info.num_workers + info.id, world * info.num_workers
        for index in range(number, self.samples, of):
            if index % 7 != 3 or info.id % 3:
                yield self.sample(index, info)

    def sample(self, index, info):
        drawn = torch.rand(3), random.random(), float(np.random.rand()), info.seed
        return index, drawn, os.environ.get("SERVER", "here")


def collated(samples):
    indices, drawn, makers = zip(*samples, strict=True)
    return torch.tensor(indices), (drawn, random.random(), torch.rand(1)), makers


def first(worker: int) -> None:
    random.random()
    os.environ["PREPARED"] = str(worker)


class Uneven(Shared):
    """Some workers have nothing at all; each was prepared by the loader's `worker_init_fn`."""

    def __iter__(self):
        info = get_worker_info()
        for index in range(info.id * 10 if info.id % 2 else 0):
            assert os.environ["PREPARED"] == str(info.id)
            yield self.sample(1000 * info.id + index, info)


def tell(name: str, batches, made: Counter) -> None:
    digest, count, indices = hashlib.sha256(), 0, []
    for batch in batches:
        made.update([batch[2]] if isinstance(batch[2], str) else batch[2])
        digest.update(repr(batch[:2]).encode())
        count += 1
        indices += np.asarray(batch[0]).reshape(-1).tolist()
    told = name, count, len(indices), len(set(indices)), digest.hexdigest()
    sys.stdout.write(" ".join(map(str, told)) + "\n")


def leaving(loader, most: int):
    for number, batch in enumerate(loader):
        yield batch
        if number == most:
            break


def iterations(workers: int):
    shared = DataLoader(Shared(300), 4, num_workers=workers, prefetch_factor=3)
    yield "left", leaving(shared, 20)
    yield "whole", shared
    uneven = DataLoader(
        Uneven(0), 4, num_workers=workers, drop_last=True, collate_fn=collated, worker_init_fn=first
    )
    yield "zipped", (batch for pair in zip(shared, uneven, strict=False) for batch in pair)
    yield "uneven", uneven
    yield "single", DataLoader(Shared(90), None, num_workers=workers)


if __name__ == "__main__":
    torch.manual_seed(5)
    made: Counter = Counter()
    for name, loader in iterations(int(sys.argv[1])):
        tell(name, loader, made)
    sys.stdout.write(f"drawn after {torch.rand(1).item()}\n")
    sys.stdout.write(f"made by {dict(sorted(made.items()))}\n")
