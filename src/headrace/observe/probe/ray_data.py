"""Waits for Ray Data: what `iter_torch_batches` hands over.

Its batches are made by Ray's own processes, which the probe does not look into.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from headrace.core.places import place_in_script
from headrace.observe.probe.loaders import LOADERS_SEEN
from headrace.observe.probe.session import SESSION, guarded

_BATCH_SIZE, _AHEAD = 256, 1  # what Ray takes where the script says nothing


class RayBatches:
    """What `iter_torch_batches` returned; each iteration of it is an epoch.

    Args:
        batches: What Ray returned.
        loader: The loader's number.
    """

    def __init__(self, batches: Any, loader: int) -> None:
        self._batches = batches
        self._loader = loader

    def __iter__(self) -> RayIterator:
        return RayIterator(iter(self._batches), self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


class RayIterator:
    """An iterator over Ray's batches, at whose `__next__` the rank waits.

    Args:
        batches: Ray's iterator.
        loader: The loader's number.
    """

    def __init__(self, batches: Iterator[Any], loader: int) -> None:
        self._batches = batches
        LOADERS_SEEN.mark(self, loader)

    def __iter__(self) -> RayIterator:
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


class _Places:
    """The loaders by where the script asks for batches: each epoch asks anew."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int], int] = {}

    @guarded
    def number(self, kwargs: dict[str, Any]) -> int | None:
        """Return the number of the loader that the script asks for; None where none is recorded."""
        if SESSION.role != "rank":
            return None
        place = place_in_script()
        if place not in self._numbers:
            size = kwargs.get("batch_size", _BATCH_SIZE)
            self._numbers[place] = LOADERS_SEEN.add(
                "ray", "Dataset", "iterable", 0, int(kwargs.get("prefetch_batches", _AHEAD)),
                -1 if size is None else int(size), int(bool(kwargs.get("pin_memory", False))),
                0, 1, "",
            )  # fmt: skip
        return self._numbers[place]


_PLACES = _Places()


def hook_ray(module: ModuleType) -> None:
    """Watch Ray Data; `ray.data.iterator` is imported."""
    original = module.DataIterator.iter_torch_batches

    @functools.wraps(original)
    def iter_torch_batches(*args: Any, **kwargs: Any) -> Any:
        batches = original(*args, **kwargs)
        number = _PLACES.number(kwargs)
        return batches if number is None else RayBatches(batches, number)

    module.DataIterator.iter_torch_batches = iter_torch_batches
