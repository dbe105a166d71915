"""Leaves an epoch in its middle, changes its dataset, and iterates again."""

from __future__ import annotations

import os
import sys
import time

from torch.utils.data import DataLoader, Dataset


class Growing(Dataset):
    def __init__(self) -> None:
        self.add = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int):
        time.sleep(0.01)
        return index + self.add, os.environ.get("STATION", "here")


if __name__ == "__main__":
    dataset = Growing()
    loader = DataLoader(dataset, batch_size=2, num_workers=1)
    makers = set()
    for turn in range(6):
        dataset.add = 1000 * turn
        seen = []
        for indices, made_by in loader:
            seen += indices.tolist()
            makers.update(made_by)
            if turn % 2 and len(seen) == 10:
                break
        assert seen == list(range(1000 * turn, 1000 * turn + len(seen))), seen
        assert len(seen) == (10 if turn % 2 else 64)
    sys.stdout.write(f"made by {sorted(makers)}\n")
