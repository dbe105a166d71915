"""Slots: reused shared memory that batches land in.

A slot is an anonymous file (memfd): it has no name in /dev/shm, so nothing is left behind by a
kill, and a container's small /dev/shm does not limit it. A worker writes a batch into a slot and
the training process maps the same pages, so pixels are never pickled and never sent. The slot is
free again when the last tensor view of its batch dies.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.data.loader.wire import ALIGNMENT, Placed, decode

_FIRST_SIZE_BYTES = 1 << 20


def new_slot_file() -> int:
    """Return the descriptor of a new anonymous file of 1 MiB, inherited by nobody by default."""
    descriptor = os.memfd_create("headrace-slot", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, _FIRST_SIZE_BYTES)
    return descriptor


class SlotMemory:
    """One slot as this process maps it. Either side may grow the file; the other maps it again."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._bytes = np.empty(0, np.uint8)

    @property
    def mapped(self) -> NDArray[np.uint8]:
        """All bytes this process has mapped."""
        return self._bytes

    def reach(self, end: int) -> NDArray[np.uint8]:
        """Map at least `end` bytes, growing the file where it is shorter; return the mapping.

        Views of an earlier, smaller mapping stay valid: they show the same pages.
        """
        if end > len(self._bytes):
            size_bytes = os.fstat(self.descriptor).st_size
            if end > size_bytes:
                size_bytes = _round_up(max(end, size_bytes * 3 // 2), mmap.PAGESIZE)
                os.ftruncate(self.descriptor, size_bytes)
            self._bytes = np.frombuffer(mmap.mmap(self.descriptor, size_bytes), np.uint8)
        return self._bytes


class SlotArena:
    """An arena in a slot: what a worker writes one batch into."""

    def __init__(self, memory: SlotMemory) -> None:
        self._memory = memory
        self._end = 0

    def reserve(self, size_bytes: int) -> int:
        """Return the offset of `size_bytes` new bytes, aligned to 64."""
        offset = _round_up(self._end, ALIGNMENT)
        self._end = offset + size_bytes
        self._memory.reach(self._end)
        return offset

    def view(self, offset: int, size_bytes: int) -> NDArray[np.uint8]:
        """Return those bytes as a writable uint8[size_bytes]."""
        return self._memory.mapped[offset : offset + size_bytes]


class PlainArena:
    """An arena in ordinary memory: what inline work writes one batch into."""

    def __init__(self) -> None:
        self._pieces: list[NDArray[np.uint8]] = []

    def reserve(self, size_bytes: int) -> int:
        """Return a handle of `size_bytes` new bytes."""
        self._pieces.append(np.empty(size_bytes, np.uint8))
        return len(self._pieces) - 1

    def view(self, offset: int, size_bytes: int) -> NDArray[np.uint8]:
        """Return the bytes behind a handle as a writable uint8[size_bytes]."""
        return self._pieces[offset][:size_bytes]


class SlotPool:
    """The slots of one executor, as the training process sees them.

    Attributes:
        count: How many slots there are.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.descriptors = [new_slot_file() for _ in range(count)]
        self._memories = [SlotMemory(descriptor) for descriptor in self.descriptors]
        # Last freed, first taken: its pages are warm, and slots never needed are never touched.
        self._free: deque[int] = deque(reversed(range(count)))
        self._lent: set[int] = set()

    def take(self) -> int | None:
        """Return a free slot for a batch to be made in, or None."""
        try:
            return self._free.pop()
        except IndexError:
            return None

    def give(self, slot: int) -> None:
        """Make a slot free again. Any thread may call this: views die wherever they die."""
        # In this order: between the two, `reclaim` must not see the slot as free and add it too.
        self._free.append(slot)
        self._lent.discard(slot)

    def reclaim(self) -> None:
        """Make all slots free that the script has no view of; only while no worker runs."""
        self._free = deque(slot for slot in reversed(range(self.count)) if slot not in self._lent)

    def free_count(self) -> int:
        """Return how many slots are free."""
        return len(self._free)

    def write(self, slot: int, payload: bytes) -> None:
        """Put the bytes of an order at the start of a slot."""
        self._memories[slot].reach(len(payload))[: len(payload)] = np.frombuffer(payload, np.uint8)

    def read(self, slot: int, offset: int, size_bytes: int) -> bytes:
        """Return bytes of a slot, copied."""
        end = offset + size_bytes
        return self._memories[slot].reach(end)[offset:end].tobytes()

    def lend(self, slot: int, structure: bytes) -> Any:
        """Return the batch in `slot` as views of it; the slot is freed when the last view dies."""
        memory = self._memories[slot].reach(os.fstat(self.descriptors[slot]).st_size)
        # A new array object over the same bytes: NumPy keeps it as the base of every view, torch
        # keeps the view, so the death of `lease` is the death of the last tensor.
        lease = np.frombuffer(memory.data, np.uint8)
        self._lent.add(slot)
        finalizer = weakref.finalize(lease, self.give, slot)
        finalizer.atexit = False
        return decode(structure, lambda placed: _value(_window(lease, placed), placed))

    def copy_out(self, slot: int, structure: bytes) -> Any:
        """Return the batch in `slot` as copies, and free the slot."""
        memory = self._memories[slot].reach(os.fstat(self.descriptors[slot]).st_size)
        try:
            return decode(structure, lambda placed: _value(_window(memory, placed).copy(), placed))
        finally:
            self.give(slot)

    def close(self) -> None:
        """Close the files. Batches that are still in use keep their pages."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []
        self._memories = []


def plain_value(arena: PlainArena, placed: Placed) -> Any:
    """Return what a placed array of inline work is to the script."""
    size_bytes = _dtype_of(placed).itemsize * int(np.prod(placed.shape, dtype=np.int64))
    raw = arena.view(placed.offset, size_bytes)
    return _value(raw.view(_dtype_of(placed)).reshape(placed.shape), placed)


def _dtype_of(placed: Placed) -> np.dtype[Any]:
    if not placed.dtype.startswith("torch:"):
        return np.dtype(placed.dtype)
    return np.dtype(np.int16 if placed.dtype == "torch:bfloat16" else np.uint8)


def _window(memory: NDArray[np.uint8], placed: Placed) -> NDArray[Any]:
    dtype = _dtype_of(placed)
    size_bytes = dtype.itemsize * int(np.prod(placed.shape, dtype=np.int64))
    window = memory[placed.offset : placed.offset + size_bytes]
    return window.view(dtype).reshape(placed.shape)


def _value(array: NDArray[Any], placed: Placed) -> Any:
    if placed.kind == "array":
        return array
    import torch

    tensor = torch.from_numpy(array)
    if placed.dtype.startswith("torch:"):
        return tensor.view(getattr(torch, placed.dtype.removeprefix("torch:")))
    return tensor


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
