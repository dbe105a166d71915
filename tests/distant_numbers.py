"""Numbers that are read ahead, with files that say when that is done; loaded without torch."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from headrace.data.loader.dataset_protocol import NativeDataset
from plain_datasets import wait_until

BATCH = 4
OTHERS = 12  # batches after a stuck first one: each of them would wait for it for 2 s


class Distant(NativeDataset):
    """Numbers that have to be read ahead; files say what was begun and what arrived."""

    fingerprint = "distant numbers"
    reads_ahead = True

    def __init__(self, folder: Path, fate: str = "") -> None:
        self.folder = folder
        self.fate = fate
        self.batches = 1 + OTHERS if fate == "stuck" else 6
        self.first_under_way = 0

    def __len__(self) -> int:
        return self.batches * BATCH

    def prefetch(self, samples: Sequence[int]) -> None:
        if 0 in samples:
            self.first_under_way = BATCH
            return
        state = "after" if (self.folder / "arrived").exists() else "before"
        (self.folder / f"batch {samples[0] // BATCH} began {state}").touch()

    def reads_under_way(self) -> int:
        return self.first_under_way

    def __getitem__(self, sample: int) -> int:
        if sample:
            return sample
        wait_until(lambda: len(list(self.folder.glob("up *"))) > 1, "both workers start")
        if self.fate == "fails":
            raise ValueError("the first sample is no good")
        if self.fate == "killed" and not (self.folder / "killed").exists():
            (self.folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fate == "stuck":
            others = [f"batch {number} began before" for number in range(1, 1 + OTHERS)]
            wait_until(lambda: all((self.folder / name).exists() for name in others), "others", 20)
        # Time enough for the other worker to begin, were it not held back.
        with suppress(TimeoutError):
            wait_until(lambda: any(self.folder.glob("batch *")), "another batch begins", 0.5)
        (self.folder / "arrived").touch()
        self.first_under_way = 0
        return 0
