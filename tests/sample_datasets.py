"""Datasets that need torch. Importable, as a user's own module would be; see plain_datasets.py."""

from __future__ import annotations

import random
import time
from collections import UserDict
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info


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


class Speechless(Exception):  # noqa: N818 - as a library's may be
    """An exception whose text cannot be formed."""

    def __str__(self) -> str:
        raise ValueError


class RaisesThis(Draws):
    """Sample 13 raises a given exception."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(20)
        self.error = error

    def __getitem__(self, index: int) -> dict[str, object]:
        if index == 13:
            raise self.error
        return super().__getitem__(index)


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


class Instances:
    """What returns a copy, as detectron2's Instances and torch's PackedSequence do."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, *args: Any, **kwargs: Any) -> Instances:
        return type(self)(self.x.to(*args, **kwargs))


class Graph(Instances):
    """What moves its own tensors and returns itself, as PyG's Batch does."""

    def to(self, device: torch.device, *args: str, non_blocking: bool = False) -> Graph:
        assert not args
        self.x = self.x.to(device, non_blocking=non_blocking)
        return self


class Boxes(Instances):
    """What knows nothing of copies that need not be waited for, and returns nothing."""

    def to(self, device: torch.device) -> None:
        self.x = self.x.to(device)


class Target(Instances):
    """What calls its device otherwise."""

    def to(self, where: torch.device, non_blocking: bool = False) -> Target:  # noqa: FBT002
        return type(self)(self.x.to(where, non_blocking=non_blocking))


class Encoding(UserDict):
    """A mapping that moves itself, with something that its items do not show."""

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__(name="x")
        self.x = x

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Encoding:
        self.x = self.x.to(device, non_blocking=non_blocking)
        return self


class Quantity:
    """What `to` converts to another unit."""

    def to(self, unit: str | None = None, *contexts: str, **options: object) -> Quantity:
        raise ValueError((unit, contexts, options))


class Stored:
    """What takes its device by name alone, as torch's storages do."""

    def to(self, *, device: torch.device, non_blocking: bool = False) -> Stored:
        raise ValueError((device, non_blocking))


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
