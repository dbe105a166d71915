"""Slots: reused shared memory that batches are written to.

A slot is an anonymous file (memfd): it has no name in /dev/shm, so nothing is left behind by a
kill, and a container's small /dev/shm does not limit it. A worker writes a batch into a slot, like
into a file, and the training process maps the same pages, so pixels are never pickled and never
sent. The slot is free again when the last tensor view of its batch dies.

Workers do not map slots: each would hold all of them in its page tables, and be counted with them.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.data.loader.serialization import ALIGNMENT, PlacedArray, decode_batch


class SlotArena:
    """An arena in a slot, where a worker writes one batch; the file grows as needed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._end = 0

    def reserve(self, size_bytes: int) -> int:
        """Return the offset of `size_bytes` new bytes, aligned to 64."""
        offset = -(-self._end // ALIGNMENT) * ALIGNMENT
        self._end = offset + size_bytes
        return offset

    def write(self, offset: int, start: int, data: NDArray[Any] | bytes) -> None:
        """Copy bytes to `start` of the range reserved at `offset`."""
        write_at(self._descriptor, offset + start, data)


class PlainArena:
    """An arena in ordinary memory, for a batch made inline."""

    def __init__(self) -> None:
        self._pieces: list[NDArray[np.uint8]] = []

    def reserve(self, size_bytes: int) -> int:
        """Return a handle of `size_bytes` new bytes."""
        self._pieces.append(np.empty(size_bytes, np.uint8))
        return len(self._pieces) - 1

    def write(self, offset: int, start: int, data: NDArray[Any] | bytes) -> None:
        """Copy bytes to `start` of the range with handle `offset`."""
        source = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else _bytes_of(data)
        self._pieces[offset][start : start + len(source)] = source

    def value(self, placed: PlacedArray) -> Any:
        """Return a placed array, or its tensor."""
        return _value(self._pieces[placed.offset], placed, 0)


class _SlotView(weakref.ref[NDArray[np.uint8]]):
    """A weak reference to the memory of a lent slot; it dies with the slot's last view."""

    __slots__ = ("slot",)
    slot: int


class SlotPool:
    """The slots of one executor, in the training process."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.descriptors: list[int] = []
        # An executor that is dropped without being closed leaves no files open.
        self._closer = weakref.finalize(self, _close_files, self.descriptors)
        try:
            for _ in range(count):
                self.descriptors.append(os.memfd_create("headrace-slot", os.MFD_CLOEXEC))
        except OSError:
            self._closer()
            raise
        self._maps = [np.empty(0, np.uint8)] * count
        # Last freed, first taken: its pages are warm, and unneeded slots take no memory.
        self._free: deque[int] = deque(reversed(range(count)))
        self._lent: dict[int, _SlotView] = {}
        self._returned: deque[_SlotView] = deque()

    def take(self) -> int | None:
        """Return a free slot for a batch to be made in, or None."""
        self._take_back()
        try:
            return self._free.pop()
        except IndexError:
            return None

    def give(self, slot: int) -> None:
        """Free a slot that was not lent."""
        self._free.append(slot)

    def reclaim(self) -> None:
        """Free all slots that the script has no view of; only while no worker runs."""
        self._take_back()
        self._free = deque(slot for slot in reversed(range(self.count)) if slot not in self._lent)

    def free_count(self) -> int:
        """Return the number of free slots."""
        self._take_back()
        return len(self._free)

    def write(self, slot: int, payload: bytes) -> None:
        """Write a pickled batch spec to the start of a slot."""
        write_at(self.descriptors[slot], 0, payload)

    def read(self, slot: int, offset: int, size_bytes: int) -> bytes:
        """Return a copy of bytes of a slot."""
        return read_at(self.descriptors[slot], offset, size_bytes)

    def content(self, slot: int, size_bytes: int) -> memoryview:
        """Return the first bytes of a slot, mapped: for as long as the slot is not free."""
        return self._mapped(slot).data[:size_bytes]

    def lend(self, slot: int, structure: bytes) -> Any:
        """Return the batch in `slot` as views of it; the slot is freed when the last view dies."""
        memory = self._mapped(slot)
        # A new array object over the same bytes: NumPy keeps it as the base of every view, torch
        # keeps the view, so the death of `lease` is the death of the last tensor.
        lease = np.frombuffer(memory.data, np.uint8)
        # A plain callback only notes the death: views die anywhere, and a KeyboardInterrupt raised
        # inside Python code that runs there would be dropped.
        ended = _SlotView(lease, self._returned.append)
        ended.slot = slot
        self._lent[slot] = ended
        return decode_batch(structure, lambda placed: _value(lease, placed, placed.offset))

    def copy_out(self, slot: int, structure: bytes) -> Any:
        """Return the batch in `slot` as copies, and free the slot."""
        memory = self._mapped(slot)
        try:
            return decode_batch(
                structure, lambda placed: _value(memory, placed, placed.offset, copied=True)
            )
        finally:
            self.give(slot)

    def close(self) -> None:
        """Close the files. Batches still in use keep their pages."""
        self._closer()
        self._maps = []

    def _take_back(self) -> None:
        """Free the slots whose last views have died."""
        # In this order, `reclaim` still finds a slot after a KeyboardInterrupt in between.
        while self._returned:
            slot = self._returned[0].slot
            self._lent.pop(slot, None)
            self._returned.popleft()
            self._free.append(slot)

    def _mapped(self, slot: int) -> NDArray[np.uint8]:
        """Map all of a slot. Views of an earlier, smaller mapping share the same pages."""
        size_bytes = os.fstat(self.descriptors[slot]).st_size
        if size_bytes > len(self._maps[slot]):
            mapping = mmap.mmap(self.descriptors[slot], size_bytes)
            self._maps[slot] = np.frombuffer(mapping, np.uint8)
        return self._maps[slot]


def _close_files(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def write_at(descriptor: int, offset: int, data: NDArray[Any] | bytes) -> None:
    """Write all of `data` at `offset` of a file."""
    whole = memoryview(data) if isinstance(data, bytes) else _bytes_of(data).data
    written = os.pwrite(descriptor, whole, offset)
    while written < len(whole):  # over 2 GiB, or a signal came
        written += os.pwrite(descriptor, whole[written:], offset + written)


def read_at(descriptor: int, offset: int, size_bytes: int) -> bytes:
    """Return bytes of a file; the file must have them."""
    data = os.pread(descriptor, size_bytes, offset)
    while len(data) < size_bytes:
        data += os.pread(descriptor, size_bytes - len(data), offset + len(data))
    return data


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _value(
    memory: NDArray[np.uint8], placed: PlacedArray, offset: int, *, copied: bool = False
) -> Any:
    """Return the array or tensor whose bytes begin at `offset`: a view of `memory`, or a copy."""
    is_torchs = placed.dtype.startswith("torch:")
    bits = np.int16 if placed.dtype == "torch:bfloat16" else np.uint8
    dtype = np.dtype(bits if is_torchs else placed.dtype)
    size_bytes = dtype.itemsize * int(np.prod(placed.shape, dtype=np.int64))
    array = memory[offset : offset + size_bytes].view(dtype).reshape(placed.shape)
    array = array.copy() if copied else array
    if placed.kind == "array":
        return array
    import torch

    tensor = torch.from_numpy(array)
    if is_torchs:
        return tensor.view(getattr(torch, placed.dtype.removeprefix("torch:")))
    return tensor
