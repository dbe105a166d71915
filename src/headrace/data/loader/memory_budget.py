"""The memory that batches made ahead may take, and how many batches fit into it."""

from __future__ import annotations

from pathlib import Path

import psutil

_SHARE = 0.2  # of what is free: the rest is for those who make batches, and those who use them
_UNKNOWN_BYTES = 512 << 20  # hardly a batch is larger


def usable_memory() -> int:
    """Return how many bytes of memory are free for this process: the host's, within its cgroup."""
    free = psutil.virtual_memory().available
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (most := limit.read_text().strip()) != "max":
        free = min(free, max(0, int(most) - int(used.read_text())))
    return free


def memory_for_batches() -> int:
    """Return how many bytes batches that are under way or made ahead may take on this host."""
    return int(usable_memory() * _SHARE)


class LargestBatch:
    """The size that a batch is taken to have: that of the largest so far.

    Not of the largest of late: what a slot has held once, it keeps the memory of.
    """

    def __init__(self) -> None:
        self._bytes = 0

    @property
    def is_known(self) -> bool:
        """Whether any batch was made."""
        return self._bytes > 0

    def note(self, size_bytes: int) -> None:
        """Note a batch that was made."""
        self._bytes = max(self._bytes, size_bytes)

    def fitting(self, memory_bytes: int) -> int:
        """Return how many batches fit; while no size is known, of a size that few exceed."""
        return memory_bytes // (self._bytes or _UNKNOWN_BYTES)
