"""Claims to ranks: which process of a host is recorded as a rank.

A script may start programs that train or evaluate, and they inherit the variables that name the
rank. The first process that asks for batches or trains claims the rank in a file; while it lives,
the others record nothing. But one that trains takes the rank over from one that has only asked for
batches: a script may look at its data before it starts the processes that train.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from headrace.core.file_lock import locked_file
from headrace.records.ring import is_running, since_boot_ns

_MAX_CLAIM_BYTES = 64
_TRAINS = b" trains"
_CLAIM_WAIT_S = 10.0  # for another rank to read the file, which takes it microseconds


class Claim(NamedTuple):
    """What a claim file holds: a process, when it claimed, in ns since boot, and if it trains."""

    pid: int
    at_ns: int
    trains: bool

    @property
    def is_mine(self) -> bool:
        """Whether this process has claimed."""
        return self.pid == os.getpid()

    @property
    def is_of_another(self) -> bool:
        """Whether another living process has claimed."""
        return not self.is_mine and is_running(self.pid, self.at_ns)


def claim_rank_file(path: Path, *, trains: bool = False) -> bool:
    """Claim a rank by its file, as a process that `trains` or not yet; raises OSError.

    False: another living process has it, and this one does not train, or the other trains as well.
    """
    with locked_file(path, _CLAIM_WAIT_S, 0o600) as descriptor:
        held = _parse(os.pread(descriptor, _MAX_CLAIM_BYTES, 0))
        if held is not None and held.is_of_another and (held.trains or not trains):
            return False
        trains = trains or (held is not None and held.is_mine and held.trains)
        os.ftruncate(descriptor, 0)
        word = _TRAINS if trains else b""
        os.pwrite(descriptor, b"%d %d%b" % (os.getpid(), since_boot_ns(), word), 0)
    return True


def claim_of(path: Path) -> Claim | None:
    """Return what a claim file holds; None if nobody has claimed."""
    try:
        return _parse(path.read_bytes())
    except FileNotFoundError:
        return None


def is_file_claimed_by_another(path: Path) -> bool:
    """Return whether another living process has claimed the rank of a claim file."""
    claim = claim_of(path)
    return claim is not None and claim.is_of_another


def _parse(content: bytes) -> Claim | None:
    if not content:
        return None
    pid, at_ns, *words = content.split()
    return Claim(int(pid), int(at_ns), bool(words))
