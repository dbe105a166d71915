"""Who reads a pipe: processes that have opened it by themselves, and did not inherit it."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil


def count_readers(descriptor: int, below_pid: int) -> int:
    """Return how many processes have opened a pipe.

    Those that another one of them has started count as that one: they inherited it.

    Args:
        descriptor: Of the pipe, in this process.
        below_pid: Whose descendants are looked at.
    """
    pipe = _identity(os.fstat(descriptor))
    parents: dict[int, int] = {}
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(below_pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                parents[process.pid] = process.ppid()
    parents.pop(os.getpid(), None)
    holding = {pid for pid in parents if _holds(pid, pipe)}
    return sum(not _inherits(pid, parents, holding) for pid in holding)


def _inherits(pid: int, parents: dict[int, int], holding: set[int]) -> bool:
    while (pid := parents.get(pid, 0)) != 0:
        if pid in holding:
            return True
    return False


def _holds(pid: int, pipe: tuple[int, int]) -> bool:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208  (it is /proc)
    except OSError:  # it has ended, or is another user's
        return False
    for each in descriptors:
        with suppress(OSError):
            if _identity(os.stat(f"/proc/{pid}/fd/{each}")) == pipe:  # noqa: PTH116
                return True
    return False


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
