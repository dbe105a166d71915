"""Whether a process still runs, by its pid and an instant of its life: pids are reused."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def since_boot_ns() -> int:
    """Return the time since the host's boot, in nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def is_running(pid: int, at_ns: int) -> bool:
    """Return whether the process that had this pid at a time since boot still runs.

    A zombie does not. True if the kernel cannot say for the moment, so that callers try again.
    """
    try:
        # The process's name may be cut within a character.
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:  # such as too many open files
        return True
    fields = stat.rpartition(")")[2].split()  # the name may contain any character, so from its end
    started_ns = int(fields[19]) * (1_000_000_000 // _TICKS_PER_S)
    return fields[0] not in "ZX" and started_ns <= at_ns  # else the pid was reused
