"""Iterates until a file named `enough` is there; prints how many hosts made each epoch."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from torch.utils.data import DataLoader


class Slow:
    """Returns by what process its workers were made: one for each host, which needs no torch."""

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int):
        time.sleep(0.02)
        return index, os.getppid(), hash("a text")


if __name__ == "__main__":
    os.environ["PYTHONHASHSEED"] = "5"  # as scripts do; it changes nothing in this process
    loader = DataLoader(Slow(), batch_size=2, shuffle=True, num_workers=1)
    while not Path("enough").exists():
        seen, makers = [], set()
        for indices, made_by, hashed in loader:
            seen += indices.tolist()
            makers.update(made_by.tolist())
            assert set(hashed.tolist()) == {hash("a text")}
        assert sorted(seen) == list(range(80)), sorted(seen)
        sys.stdout.write(f"epoch whole, {len(makers)} hosts\n")
