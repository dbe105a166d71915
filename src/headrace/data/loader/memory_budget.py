"""The memory budget of prefetched batches."""

from __future__ import annotations

from pathlib import Path

import psutil

from headrace.core.cgroups import memory_left

_SHARE = 0.2  # of free memory: workers and the script need the rest
_UNKNOWN_BYTES = 512 << 20  # few batches are larger


def usable_memory(proc: Path = Path("/proc/self")) -> int:
    """Return the free memory for this process in bytes: the host's, within its control groups."""
    free, left = psutil.virtual_memory().available, memory_left(proc)
    return free if left is None else min(free, left)


def memory_for_batches() -> int:
    """Return the memory in bytes that unfinished and prefetched batches may take on this host."""
    return int(usable_memory() * _SHARE)


class LargestBatch:
    """The size of the largest batch so far.

    Not of the largest recent one: a slot keeps the memory of the largest batch that it has held.
    """

    def __init__(self) -> None:
        self._bytes = 0

    @property
    def is_known(self) -> bool:
        """Whether a batch was made."""
        return self._bytes > 0

    def note(self, size_bytes: int) -> None:
        """Note the size of a batch."""
        self._bytes = max(self._bytes, size_bytes)

    def fitting(self, memory_bytes: int) -> int:
        """Return how many batches fit; of a size that few exceed while none is known."""
        return memory_bytes // (self._bytes or _UNKNOWN_BYTES)
