"""The identity of a process on this host, by pid and time since boot, and whether it runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def since_boot_ns() -> int:
    """Return the time since the host's boot, in nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def is_running(pid: int, at_ns: int) -> bool:
    """Tell whether the process that had this number at a time since boot still runs.

    One that has ended and that nobody has waited for yet does not. Where the kernel cannot say at
    the moment, it does: who asks again is told.
    """
    try:
        # What its owner named it may be cut amid a character.
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:  # no memory, or too many files are open
        return True
    fields = stat.rpartition(")")[2].split()  # a name may hold anything, so from its end
    started_ns = int(fields[19]) * (1_000_000_000 // _TICKS_PER_S)
    return fields[0] not in "ZX" and started_ns <= at_ns  # a later one has the number by chance
