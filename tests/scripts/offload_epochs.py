"""Iterates until a file named `enough` is there; prints of each epoch whether it was whole."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from torch.utils.data import DataLoader

SAMPLES = 96


class Slow:
    """Needs no torch, so that processes which make its samples start without it."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int):
        time.sleep(0.01)
        return index, os.environ.get("SERVER", "here")


if __name__ == "__main__":
    loader = DataLoader(Slow(), batch_size=2, shuffle=True, num_workers=1)
    while not Path("enough").exists():
        seen, makers = [], set()
        for indices, made_by in loader:
            seen += indices.tolist()
            makers.update(made_by)
        assert sorted(seen) == list(range(SAMPLES)), sorted(seen)
        sys.stdout.write(f"epoch whole, made by {sorted(makers)}\n")
