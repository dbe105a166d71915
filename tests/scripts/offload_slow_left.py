"""Leaves an epoch while another host makes its batches, changes the dataset, and iterates again."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from torch.utils.data import DataLoader, Dataset


class Changing(Dataset):
    """Goes slowly elsewhere; here it waits until others are at work."""

    def __init__(self) -> None:
        self.add = 0

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int):
        mark = Path(f"others-{self.add}")
        if os.environ.get("STATION"):
            mark.touch()
            time.sleep(0.3)
        deadline_s = time.monotonic() + 60
        while not mark.exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return index + self.add


if __name__ == "__main__":
    dataset = Changing()
    loader = DataLoader(dataset, batch_size=1, num_workers=2)
    for turn in range(4):
        dataset.add = 1000 * turn
        seen = []
        for batch in loader:
            seen += batch.tolist()
            if turn < 3 and len(seen) == 3:
                break
        assert seen == list(range(1000 * turn, 1000 * turn + len(seen))), seen
    assert len(seen) == 60
    sys.stdout.write("whole\n")
