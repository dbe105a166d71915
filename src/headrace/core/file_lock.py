"""Locks on files between processes; the kernel releases one however its process ends."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path


def open_lock_file(path: Path | str, mode: int = 0o644) -> int:
    """Return the descriptor of a file to lock, made if needed; raises OSError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)


def try_lock(descriptor: int, *, shared: bool = False, required: bool = True) -> bool:
    """Lock an open file until it is closed, or convert its lock; False if another process has it.

    Args:
        descriptor: The file.
        shared: Any number of processes may hold it together.
        required: Raise OSError where the file system has no locks; else return True there.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        if required:
            raise
    return True


def wait_for_lock(descriptor: int) -> None:
    """Wait for the lock of an open file; without one where the file system has no locks."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def unlock(descriptor: int) -> None:
    """Release a lock; closing is not enough where a child forked meanwhile has the descriptor."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
