"""Datasets that tests load. Importable, as a user's own module would be."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from jobs import eventually


class Draws:
    """Each sample draws from all three global generators."""

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
            "torch": torch.rand(2),
            "name": f"s{index}",
            "nested": (index * 2, [float(index), index % 2 == 0]),
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
            eventually(self.marker.exists, "another worker makes the other samples")
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


class Numbers(IterableDataset):  # type: ignore[type-arg]
    """0 to n - 1, split over workers as torch's documentation shows it."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(first, self.samples, step))


class Pair(NamedTuple):
    """What a collate_fn may return: a tuple with names."""

    index: Any
    values: list[Any]


def noisy(samples: list[Any]) -> torch.Tensor:
    """Draw a number from each generator in place of collating."""
    return torch.tensor([random.random(), np.random.rand(), float(torch.rand(()))])


def pad(samples: list[np.ndarray]) -> torch.Tensor:
    """Collate ragged arrays, as a user would."""
    longest = max(len(sample) for sample in samples)
    padded = torch.zeros(len(samples), longest, dtype=torch.int64)
    for row, sample in enumerate(samples):
        padded[row, : len(sample)] = torch.from_numpy(sample)
    return padded


def assert_same(one: object, other: object) -> None:
    """Assert that two batches are the same, bit for bit, in type and value."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for mine, yours in zip(one, other, strict=True):
            assert_same(mine, yours)
    else:
        assert one == other


class RandomStream(IterableDataset):  # type: ignore[type-arg]
    """Draws a number for each sample."""

    def __iter__(self):
        for _ in range(6):
            yield random.random()


class Restarts:
    """An iterator that begins anew after its end, as some do."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at > 5:
            self.at = 0
            raise StopIteration
        return self.at


class SlowStream(IterableDataset):  # type: ignore[type-arg]
    """Worker 0 takes longer for a sample than a loader takes between two looks at its workers."""

    def __iter__(self):
        for number in range(3):
            time.sleep(1.3 if get_worker_info().id == 0 else 0.6)
            yield number


class WholeBatches:
    """`__getitems__` returns a batch, ready made."""

    prefetch = False  # an attribute of the user's own, which means nothing to the loader

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor(indices)}


class Shared:
    """Says whether torch takes the process for a worker of its own while it collates."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), index, dtype=torch.bfloat16)


def collate_and_look(samples: list[torch.Tensor]) -> tuple[torch.Tensor, bool]:
    """Collate as torch does, and say whether the batch lies in torch's shared memory."""
    batch = torch.utils.data.default_collate(samples)
    return batch, batch.is_shared()
