"""The cores that each process of a run may use: its own CPU affinity and control groups.

A rank may be started with fewer cores than the launcher has (taskset, numactl), a script may bind
itself (`os.sched_setaffinity`, a library that does so on import), and workers may in their
`worker_init_fn`. So each process is asked at every tick, and what changed is recorded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from headrace.core.cgroups import cpu_quota
from headrace.observe.probe.process_usage import read_proc_file

_Row = tuple[int, int, float, str]


class ProcessCores:
    """Looks at which cores processes may use."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, str]] = {}
        self._quotas: dict[bytes, float | None] = {}  # by the content of /proc/PID/cgroup

    def rows(self, pids: Iterable[int]) -> list[_Row]:
        """Return rows of `process_cores` for the processes whose cores are new or have changed."""
        found: list[_Row] = []
        now = {pid: cores for pid in pids if (cores := self._cores_of(pid)) is not None}
        for pid, cores in now.items():
            if self._known.get(pid) != cores:
                found.append((time.monotonic_ns(), pid, *cores))
        self._known = now
        return found

    def _cores_of(self, pid: int) -> tuple[float, str] | None:
        """Return how many cores a process may use, and which; None if it has ended."""
        with suppress(OSError):
            numbers = os.sched_getaffinity(pid)
            quota = self._quota_of(pid)
            count = float(len(numbers))
            return (count if quota is None else min(count, quota)), numbers_text(numbers)
        return None

    def _quota_of(self, pid: int) -> float | None:
        groups = read_proc_file(f"/proc/{pid}/cgroup")
        if groups not in self._quotas:
            self._quotas[groups] = cpu_quota(Path(f"/proc/{pid}"))
        return self._quotas[groups]


def numbers_text(numbers: Collection[int]) -> str:
    """Return numbers as ranges, as the kernel lists cores: 0-3,8."""
    ordered = sorted(numbers)
    starts = [ordered[0], *(b for a, b in pairwise(ordered) if b != a + 1)] if ordered else []
    ends = [*(a for a, b in pairwise(ordered) if b != a + 1), *ordered[-1:]]
    return ",".join(
        f"{start}-{end}" if start < end else f"{start}"
        for start, end in zip(starts, ends, strict=True)
    )
