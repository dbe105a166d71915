"""Which process records as a rank, where several bear its name.

A script may start programs that train or evaluate, and they inherit all that names the rank. The
first that trains claims it, in a file. While that process lives, the others record nothing, or two
processes' steps would be taken for one's.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from headrace.core.processes import is_running, since_boot_ns

_MOST_BYTES = 64


def claim(path: Path) -> bool:
    """Claim what the file stands for; return False where another process lives that has done so.

    Raises:
        OSError: The file cannot be made or written.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with suppress(OSError):  # a disk without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_anothers(os.pread(descriptor, _MOST_BYTES, 0)):
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {since_boot_ns()}".encode(), 0)
    finally:
        os.close(descriptor)
    return True


def is_claimed_by_another(path: Path) -> bool:
    """Whether another process lives that has claimed it."""
    try:
        return _is_anothers(path.read_bytes())
    except FileNotFoundError:
        return False


def _is_anothers(claimer: bytes) -> bool:
    if not claimer:
        return False
    pid, at_ns = map(int, claimer.split())
    return pid != os.getpid() and is_running(pid, at_ns)
