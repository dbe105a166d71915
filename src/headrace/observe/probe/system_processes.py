"""What each process of a run uses: one read of /proc each a tick."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_Row = tuple[int, int, float, int, int, int]


@dataclass(frozen=True, slots=True)
class _Look:
    """A process at one moment; CPU time in the kernel's ticks."""

    t_ns: int
    parent: int
    cpu: int
    ended_cpu: int  # of its children that have ended, and their children
    born_ns: int
    threads: int
    resident_bytes: int
    read_bytes: int


class ProcessUsage:
    """Looks at processes; what each used is over the time since it was looked at before.

    Nothing that a process used is left to be taken for others': one that is new has what it used
    since the tick before, and one that has ended what its parent was told of.
    """

    def __init__(self) -> None:
        self._before: dict[int, _Look] = {}
        self._before_ns = 0

    def rows(self, pids: Iterable[int]) -> list[_Row]:
        """Return rows of `process_usage`; those of the first call have none.

        Args:
            pids: The processes; those that are gone are passed over.
        """
        began_ns = time.monotonic_ns()
        now = {pid: look for pid in set(pids) if (look := _look(pid)) is not None}
        found = []
        for pid, look in now.items():
            before = self._before.get(pid)
            if before is not None:
                read = -1 if look.read_bytes < 0 else look.read_bytes - before.read_bytes
                found.append(_row(pid, look, look.cpu - before.cpu, before.t_ns, read))
            elif self._before_ns:
                share = min((look.t_ns - self._before_ns) / max(look.t_ns - look.born_ns, 1), 1.0)
                found.append(_row(pid, look, look.cpu * share, self._before_ns, look.read_bytes))
        found += self._ended(now)
        self._before, self._before_ns = now, began_ns
        return found

    def _ended(self, now: dict[int, _Look]) -> Iterator[_Row]:
        """Give rows of processes that have ended since, and that their parents have waited for."""
        gone = {pid: look for pid, look in self._before.items() if pid not in now}
        for parent in {look.parent for look in gone.values()} & now.keys() & self._before.keys():
            children = {pid: look for pid, look in gone.items() if look.parent == parent}
            told = now[parent].ended_cpu - self._before[parent].ended_cpu
            unseen = told - sum(look.cpu for look in children.values())
            for pid, look in children.items():
                if unseen > 0:
                    last = replace(look, t_ns=now[parent].t_ns)
                    yield _row(pid, last, unseen / len(children), look.t_ns, -1)


def _row(pid: int, look: _Look, cpu: float, since_ns: int, read_bytes: int) -> _Row:
    percent = 100e9 * cpu / _TICKS_PER_S / max(look.t_ns - since_ns, 1)
    return look.t_ns, pid, percent, look.resident_bytes, look.threads, read_bytes


def _look(pid: int) -> _Look | None:
    """Look at a process; None: it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # From the third on, as proc(5) numbers them: the second, a name, may have spaces in it.
    fields = stat.rpartition(")")[2].split()
    now_ns = time.monotonic_ns()
    alive_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - int(fields[19]) * 10**9 // _TICKS_PER_S
    return _Look(
        t_ns=now_ns,
        parent=int(fields[1]),
        cpu=int(fields[11]) + int(fields[12]),
        ended_cpu=int(fields[13]) + int(fields[14]),
        born_ns=now_ns - alive_ns,
        threads=int(fields[17]),
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
        read_bytes=_read_bytes(pid),
    )


def _read_bytes(pid: int) -> int:
    """Return what the process's read calls gave it so far; -1: it belongs to someone else."""
    try:
        return int(Path(f"/proc/{pid}/io").read_text().split(maxsplit=2)[1])  # "rchar: 123"
    except (OSError, ValueError, IndexError):
        return -1
