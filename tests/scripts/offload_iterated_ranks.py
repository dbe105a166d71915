"""A rank's part of an iterable dataset, by torch's loader or ours (argv[1]), one line a batch."""

from __future__ import annotations

import os
import sys

import torch
from torch.utils.data import IterableDataset, get_worker_info

import headrace


class Shared(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        number, of = rank * info.num_workers + info.id, world * info.num_workers
        for index in range(number, 200, of):
            yield index, torch.rand(1).item(), os.environ.get("SERVER", "here")


def tell(loader) -> None:
    for indices, drawn, made_by in loader:
        sys.stdout.write(f"{indices.tolist()} {drawn.tolist()} {made_by[0]}\n")


if __name__ == "__main__":
    kind, workers = sys.argv[1], int(sys.argv[2])
    if kind == "torch":
        tell(torch.utils.data.DataLoader(Shared(), 3, num_workers=workers))
    else:
        first = headrace.DataLoader(Shared(), 3, num_workers=workers)
        for number, (indices, drawn, made_by) in enumerate(first):
            sys.stdout.write(f"{indices.tolist()} {drawn.tolist()} {made_by[0]}\n")
            if number == 14:
                break
        again = headrace.DataLoader(Shared(), 3, num_workers=workers)
        again.load_state_dict(first.state_dict())
        tell(again)
        sys.stdout.write(f"shared among {first.state_dict()['workers']}\n")
