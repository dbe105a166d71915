"""Datasets that workers load without torch, whose import would cost each forkserver a second."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np


class Draws:
    """Each sample draws from Python's and from NumPy's global generator."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, object]:
        return {
            "index": index,
            "pixels": np.full((4, 6, 3), index % 256, np.uint8),
            "python": random.random(),
            "numpy": np.random.rand(3),
            "name": f"s{index}",
        }


class Raises(Draws):
    """Sample 13 raises."""

    def __getitem__(self, index: int) -> dict[str, object]:
        if index == 13:
            raise ZeroDivisionError("thirteen")
        return super().__getitem__(index)


class KillsItsWorker(Draws):
    """Sample 13 ends the process that makes it: once, or always where there is no marker file."""

    def __init__(self, samples: int, marker: Path | None) -> None:
        super().__init__(samples)
        self.marker = marker

    def __getitem__(self, index: int) -> dict[str, object]:
        if index == 13 and (self.marker is None or not self.marker.exists()):
            if self.marker is not None:
                self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Hangs(Draws):
    """Sample 13 takes forever."""

    def __getitem__(self, index: int) -> dict[str, object]:
        while index == 13:
            time.sleep(3600)  # what a hanging read looks like from outside
        return super().__getitem__(index)


class HoldsLock(Draws):
    """Cannot be pickled."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.guard = threading.Lock()


class WaitsForOthers:
    """Sample 0 is made when all the others have been: by turns that would never be."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 7:
            self.marker.touch()
        if index == 0:
            wait_until(self.marker.exists, "another worker makes the other samples")
        return index


class Images:
    """Arrays of 256 kB, so that batches are worth a slot."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full((512, 512), index, np.uint8)


class Ragged:
    """Arrays of a length that varies from sample to sample."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> np.ndarray:
        return np.arange(index * 1000, dtype=np.int64)


class Indices:
    """A dataset whose samples are their own numbers."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


class RandomStream:
    """An iterable that draws a number for each sample."""

    def __iter__(self) -> Iterator[float]:
        for _ in range(6):
            yield random.random()


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 180.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {timeout_s} s: {what}")
        time.sleep(0.02)
