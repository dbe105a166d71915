"""Batches that a library hands on to a script: Ray Data's, and those of Accelerate's dispatcher.

Ray Data's batches are made by Ray's own processes, which the probe does not observe: only the waits
for the batches of `iter_torch_batches` are recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from headrace.core.source_location import script_location
from headrace.core.warning_frames import skipped_by_warnings
from headrace.observe.probe.iterator_state import IteratorState
from headrace.observe.probe.loaders import LOADER_REGISTRY
from headrace.observe.probe.recording_session import SESSION, guarded

_BATCH_SIZE, _PREFETCH_BATCHES = 256, 1  # Ray's defaults


class RecordedRayBatches:
    """Wrapper of the return value of `iter_torch_batches`; each iteration of it is an epoch."""

    def __init__(self, batches: Any, loader: int) -> None:
        self._batches = batches
        self._loader = loader

    def __iter__(self) -> RecordedIterator:
        return RecordedIterator(iter(self._batches), self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


class RecordedIterator:
    """Wrapper of a library's iterator over batches, whose `__next__` is hooked."""

    _headrace_state: IteratorState | None = None  # its own, not one of the iterator within

    def __init__(self, batches: Iterator[Any], loader: int) -> None:
        self._batches = batches
        LOADER_REGISTRY.mark(self, loader)

    def __iter__(self) -> RecordedIterator:
        return self

    @skipped_by_warnings
    def __next__(self) -> Any:
        return next(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


_LOADERS_BY_LINE: dict[tuple[str, int], int] = {}
"""Numbers of Ray Data's loaders by the line that asks for batches, the same in each epoch."""


@guarded
def _ray_loader_number(kwargs: dict[str, Any]) -> int | None:
    """Return the number of the loader at the script's line; None if this is no rank."""
    if SESSION.role != "rank":
        return None
    place = script_location()
    if place not in _LOADERS_BY_LINE:
        size = kwargs.get("batch_size", _BATCH_SIZE)
        prefetched = int(kwargs.get("prefetch_batches", _PREFETCH_BATCHES))
        batch_size = -1 if size is None else int(size)
        pinned = int(bool(kwargs.get("pin_memory", False)))
        description = ("ray", "Dataset", "iterable", 0, prefetched, batch_size, pinned, 0, 1, "")
        _LOADERS_BY_LINE[place] = LOADER_REGISTRY.add(*description)
    return _LOADERS_BY_LINE[place]


def hook_ray_data(module: ModuleType) -> None:
    """Hook Ray Data; `ray.data.iterator` is imported."""
    original = module.DataIterator.iter_torch_batches

    @functools.wraps(original)
    @skipped_by_warnings
    def iter_torch_batches(*args: Any, **kwargs: Any) -> Any:
        batches = original(*args, **kwargs)
        number = _ray_loader_number(kwargs)
        return batches if number is None else RecordedRayBatches(batches, number)

    module.DataIterator.iter_torch_batches = iter_torch_batches


def hook_accelerate(module: ModuleType) -> None:
    """Hook Accelerate's loader whose rank 0 reads for all, and sends each rank its part.

    All ranks wait for that in `next()`, in which rank 0 asks the loader within for batches.
    """
    dispatcher = module.DataLoaderDispatcher
    original = dispatcher.__iter__

    @functools.wraps(original)
    @skipped_by_warnings
    def __iter__(loader: Any) -> Any:  # noqa: N807 - replaces that method
        batches = original(loader)
        # In old releases the dispatcher is the loader itself.
        number = LOADER_REGISTRY.number_of_loader(getattr(loader, "base_dataloader", loader))
        if number < 0:
            return batches
        LOADER_REGISTRY.counted_outside.add(number)
        return RecordedIterator(batches, number)

    dispatcher.__iter__ = __iter__
