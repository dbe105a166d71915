"""Loaders as they are made and let go of: looked into once, left, held by what they call."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from torch.utils.data import DataLoader

ROUNDS = 1  # after the first: each costs a forkserver here and one there


class Holder:
    def __init__(self) -> None:
        self.loader = DataLoader(range(20), 2, num_workers=1, collate_fn=self.collate)

    def collate(self, samples: list) -> list:
        return samples


def open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def look_once() -> None:
    next(iter(DataLoader(range(20), 2, num_workers=1)))


def leave() -> None:
    loader = DataLoader(range(20), 2, num_workers=1, persistent_workers=True)
    for _ in loader:
        break


def whole() -> None:
    assert len(list(Holder().loader)) == 10


if __name__ == "__main__":
    for way in (look_once, leave, whole):
        way()
        before = open_files()
        for _ in range(ROUNDS):
            way()
        assert open_files() <= before, (way.__name__, before, open_files())
    sys.stdout.write("whole\n")
