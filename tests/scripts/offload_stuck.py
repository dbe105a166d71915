"""A dataset that hangs on other hosts, as one does whose network drive is gone there."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from torch.utils.data import DataLoader, Dataset


class Hanging(Dataset):
    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> int:
        mark = Path("others-hang")
        if os.environ.get("STATION"):
            mark.touch()
            time.sleep(1000)
        deadline_s = time.monotonic() + 60
        while not mark.exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        time.sleep(0.005)
        return index


if __name__ == "__main__":
    loader = DataLoader(Hanging(), batch_size=2, num_workers=2)
    for _ in range(2):
        seen = [index for batch in loader for index in batch.tolist()]
        assert seen == list(range(200)), seen
    sys.stdout.write("whole\n")
