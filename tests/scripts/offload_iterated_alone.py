"""Iterable datasets that are not shared with other hosts: argv[1] says why."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import IterableDataset

import headrace


class Unshared(IterableDataset):
    """Does not ask which worker it is: right as long as there is one."""

    def __iter__(self):
        yield from range(12)


def unshared() -> None:
    for kind in (torch.utils.data.DataLoader, headrace.DataLoader):
        for workers in (0, 1):
            loader = kind(Unshared(), 4, num_workers=workers)
            for _ in range(2):
                assert torch.cat(list(loader)).tolist() == list(range(12))


if __name__ == "__main__":
    {"unshared": unshared}[sys.argv[1]]()
    sys.stdout.write("whole\n")
