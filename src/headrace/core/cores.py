"""How many cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Return how many cores this process may use: its affinity, within its cgroup's quota."""
    cores = len(os.sched_getaffinity(0))
    if _QUOTA.exists():
        quota, period = _QUOTA.read_text().split()
        if quota != "max":
            cores = min(cores, max(1, math.ceil(int(quota) / int(period))))
    return cores
