"""Iterates over iterable datasets as people write them, by torch's loader and ours.

`python offload_iterated.py WORKERS` prints what comes without auxiliary hosts, as JSON; with them
it is the same where there are as many workers here and elsewhere together, but for who made what.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from collections import Counter

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import headrace


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


def described(name: str, batches, made: Counter) -> str:
    digest, count, indices = hashlib.sha256(), 0, []
    for batch in batches:
        made.update([batch[2]] if isinstance(batch[2], str) else batch[2])
        digest.update(repr(batch[:2]).encode())
        count += 1
        indices += np.asarray(batch[0]).reshape(-1).tolist()
    fields = name, count, len(indices), len(set(indices)), digest.hexdigest()
    return " ".join(map(str, fields))


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


def iterated(workers: int) -> list[str]:
    """Return a line of each iteration, and last who made how much."""
    torch.manual_seed(5)
    made: Counter = Counter()
    lines = [described(name, loader, made) for name, loader in iterations(workers)]
    return [*lines, f"drawn after {torch.rand(1).item()}", f"made by {dict(sorted(made.items()))}"]


class Drawn(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for index in range(info.id, 200, info.num_workers):
            yield index, torch.rand(1).item(), os.environ.get("SERVER", "here")


def resumed(workers: int) -> list[str]:
    """Return a line of each batch of our own loader, whose state another one goes on from."""
    first = headrace.DataLoader(Drawn(), 3, num_workers=workers)
    lines = [line_of(batch) for batch in leaving(first, 14)]
    again = headrace.DataLoader(Drawn(), 3, num_workers=workers)
    again.load_state_dict(first.state_dict())
    lines += map(line_of, again)
    return [*lines, f"shared among {first.state_dict()['workers']}"]


def line_of(batch) -> str:
    indices, drawn, made_by = batch
    return f"{indices.tolist()} {drawn.tolist()} {made_by[0]}"


if __name__ == "__main__":
    count = int(sys.argv[1])
    sys.stdout.write(json.dumps({"iterated": iterated(count), "resumed": resumed(count)}))
