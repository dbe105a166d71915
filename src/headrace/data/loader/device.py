"""Batches to their device: asynchronously, from pinned memory, then the transform there."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any

import torch


def map_tensors(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return `batch` with every tensor in its dicts, lists and tuples replaced by `change(it)`.

    Objects of other kinds are left as they are.
    """
    match batch:
        case torch.Tensor():
            return change(batch)
        case MutableMapping():
            changed = copy.copy(batch)  # of the same class: an OrderedDict, a UserDict, ...
            changed.update({name: map_tensors(value, change) for name, value in batch.items()})
            return changed
        case tuple() if hasattr(batch, "_fields"):
            return type(batch)(*(map_tensors(value, change) for value in batch))
        case list() | tuple():
            return type(batch)(map_tensors(value, change) for value in batch)
        case _:
            return batch


class DeviceFeed:
    """Copies batches to a device and applies the transform there.

    On CUDA a batch is copied into pinned memory and from there on a side stream, so that the copy
    overlaps with the step at work; the consuming stream waits for it on the device, never here.

    Args:
        device: Where batches go; None leaves them where they are. "cuda" without a number is the
            current device when the first batch comes, as in torch.
        transform: Called with the batch on its device; draws from torch's global generators, which
            are seeded by (seed, epoch, batch, rank) for it and put back afterwards.
        pin_memory: Without a device: leave tensors in pinned memory, where there is CUDA.
    """

    def __init__(
        self,
        device: torch.device | str | None,
        transform: Callable[[Any], Any] | None,
        *,
        pin_memory: bool = False,
    ) -> None:
        self._device = torch.device(device) if device is not None else None
        self._pins = pin_memory and torch.cuda.is_available()
        self._transform = transform
        self._stream: torch.cuda.Stream | None = None  # from the first batch on, for CUDA
        # Pinned sources of copies that may still be under way, with the event that ends each.
        self._under_way: deque[tuple[torch.cuda.Event, Any]] = deque()

    def __call__(self, batch: Any, seed: int) -> Any:
        """Return a batch on its device, transformed with generators of that seed."""
        if self._device is not None and self._device.type == "cuda":
            batch = self._copy_on_side_stream(batch, self._stream or self._begun(self._device))
        elif self._device is not None:
            batch = map_tensors(batch, lambda tensor: tensor.to(self._device))
        elif self._pins:
            batch = map_tensors(batch, lambda tensor: tensor.pin_memory())
        if self._transform is None:
            return batch
        on_cuda = self._device if self._stream is not None else None
        with torch.random.fork_rng(devices=[on_cuda] if on_cuda is not None else []):
            # Not torch.manual_seed: it would seed every accelerator, and fork_rng puts back one.
            torch.default_generator.manual_seed(seed)
            if on_cuda is not None:
                torch.cuda.default_generators[on_cuda.index or 0].manual_seed(seed)
            return self._transform(batch)

    def _begun(self, device: torch.device) -> torch.cuda.Stream:
        """Settle on the device: a script may make its loader first and choose its device then."""
        number = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device(device.type, number)
        self._stream = torch.cuda.Stream(self._device)
        return self._stream

    def _copy_on_side_stream(self, batch: Any, stream: torch.cuda.Stream) -> Any:
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()
        pinned = map_tensors(batch, lambda tensor: tensor.pin_memory())
        with torch.cuda.stream(stream):
            moved = map_tensors(pinned, lambda tensor: tensor.to(self._device, non_blocking=True))
            event = torch.cuda.Event()
            event.record(stream)
        self._under_way.append((event, pinned))
        current = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        # The caching allocator must not hand this memory out while the step's stream reads it.
        map_tensors(moved, lambda tensor: tensor.record_stream(current))
        return moved
