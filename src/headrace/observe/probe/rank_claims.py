"""Claims to ranks: which process of a host is recorded as a rank.

A script may start programs that train or evaluate, and they inherit the variables that name the
rank. The first process that trains claims the rank in a file; while it lives, the others record
nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from headrace.core.file_lock import locked_file
from headrace.records.ring import is_running, since_boot_ns

_MAX_CLAIM_BYTES = 64
_CLAIM_WAIT_S = 10.0  # for another rank to read the file, which takes it microseconds


def claim_rank_file(path: Path) -> bool:
    """Claim a rank by its file; return False if another living process has it; raises OSError."""
    with locked_file(path, _CLAIM_WAIT_S, 0o600) as descriptor:
        if _is_other_process(os.pread(descriptor, _MAX_CLAIM_BYTES, 0)):
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {since_boot_ns()}".encode(), 0)
    return True


def is_file_claimed_by_another(path: Path) -> bool:
    """Return whether another living process has claimed the rank of a claim file."""
    try:
        return _is_other_process(path.read_bytes())
    except FileNotFoundError:
        return False


def _is_other_process(claimer: bytes) -> bool:
    if not claimer:
        return False
    pid, at_ns = map(int, claimer.split())
    return pid != os.getpid() and is_running(pid, at_ns)
