"""Locks on files between processes; the kernel releases one however its process ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.core.supported_platform import require_supported_platform

try:
    import fcntl
except ImportError:
    require_supported_platform()
    raise

_POLL_S = 0.05


def open_lock_file(path: Path | str, mode: int = 0o644) -> int:
    """Return the descriptor of a file to lock, made if needed; raises OSError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)


def try_lock(descriptor: int, *, shared: bool = False, required: bool = True) -> bool:
    """Lock an open file until it is closed, or convert its lock; False if another process has it.

    Any number of processes may hold a shared lock together. Where the file system has no locks,
    raise OSError if it is required, else return True.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        if required:
            raise
    return True


def lock_within(descriptor: int, wait_s: float, *, required: bool = True) -> bool:
    """Lock an open file, with retries for some seconds; see `try_lock`."""
    deadline = time.monotonic() + wait_s
    while not try_lock(descriptor, required=required):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


@contextmanager
def locked_file(path: Path, wait_s: float, mode: int = 0o644) -> Iterator[int]:
    """Hold the lock of a file, made if needed, for the block; yield its descriptor.

    Where the file system has no locks, the block runs without. TimeoutError: another process has
    held it all the time; OSError: it cannot be made.
    """
    descriptor = open_lock_file(path, mode)
    try:
        if not lock_within(descriptor, wait_s, required=False):
            raise TimeoutError(f"{path}: another process has held it for {wait_s:.0f} s")
        yield descriptor
    finally:
        os.close(descriptor)


class SilenceTimer:
    """How long a process that holds a lock has shown no activity, by this process's own clock.

    Times of files and of day may jump, or be those of another host.
    """

    def __init__(self) -> None:
        self._seen: object = None
        self._since_s = 0.0

    def silent_s(self, activity: object) -> float:
        """Return for how many seconds `activity`, such as a file's time, has been the same."""
        now_s = time.monotonic()
        if self._seen is None or activity != self._seen:
            self._seen, self._since_s = activity, now_s
        return now_s - self._since_s


def is_locked(path: Path, *, unknown: bool) -> bool:
    """Whether a process has locked a file, `unknown` where the file system has no locks.

    False if there is no such file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_lock(descriptor, shared=True)
    except OSError:
        return unknown
    finally:
        os.close(descriptor)


def unlock(descriptor: int) -> None:
    """Release a lock; closing is not enough where a child forked meanwhile has the descriptor."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
