"""What each process of a run uses: one read of /proc each a tick."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_WAITS_TICKS = 4
"""A worker's records are heard of some ticks after its end."""
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

    What the run used is not to be taken for others' use, however short a process lives: one that is
    new has what it used since the tick before, and what its parents were told of those that have
    ended, and nobody saw, goes to these.
    """

    def __init__(self) -> None:
        self._before: dict[int, _Look] = {}
        self._before_ns = 0
        self._told: dict[int, float] = {}  # CPU time in rows, of processes that run
        self._heard_of: set[int] = set()
        self._unseen = 0.0  # CPU time of processes that have ended, in no row
        self._unseen_for = 0  # ticks in which there was nobody to give it to

    def rows(self, pids: Iterable[int]) -> list[_Row]:
        """Return rows of `process_usage`; those of the first call have none.

        Args:
            pids: The processes; also those that are gone, or were before they were looked at.
        """
        began_ns, known = time.monotonic_ns(), set(pids)
        now = {pid: look for pid in known if (look := _look(pid)) is not None}
        found = [self._row(pid, look) for pid, look in now.items() if self._since(pid)]
        gone = [pid for pid in self._before if pid not in now]
        self._unseen += self._ended_cpu(now)
        missed = known - now.keys() - self._heard_of
        found += self._handed_on([*gone, *missed], began_ns)
        self._before, self._before_ns = now, began_ns
        self._heard_of |= known
        return found

    def _since(self, pid: int) -> int:
        """Return since when a row tells of a process; 0 at the first call."""
        return self._before[pid].t_ns if pid in self._before else self._before_ns

    def _row(self, pid: int, look: _Look) -> _Row:
        since_ns, before = self._since(pid), self._before.get(pid)
        if before is not None:
            cpu = float(look.cpu - before.cpu)
            read = -1 if look.read_bytes < 0 else look.read_bytes - before.read_bytes
        else:
            cpu = look.cpu * min((look.t_ns - since_ns) / max(look.t_ns - look.born_ns, 1), 1.0)
            read = look.read_bytes
        self._told[pid] = self._told.get(pid, 0.0) + cpu
        percent = _percent(cpu, look.t_ns - since_ns)
        return look.t_ns, pid, percent, look.resident_bytes, look.threads, read

    def _ended_cpu(self, now: dict[int, _Look]) -> float:
        """Return the CPU time of children that have ended since the tick before, unless in rows."""
        both = now.keys() & self._before.keys()
        ended = float(sum(now[pid].ended_cpu - self._before[pid].ended_cpu for pid in both))
        for pid, look in self._before.items():
            if pid not in now:
                told = self._told.pop(pid, 0.0) + look.ended_cpu  # its parent is told of that, too
                ended -= told if look.parent in both else 0.0  # else nobody is told of its end
        return ended

    def _handed_on(self, heirs: list[int], now_ns: int) -> Iterator[_Row]:
        """Give rows to processes that have ended, of what nobody saw; other children have none."""
        if not heirs:
            self._unseen_for += 1
            if self._unseen_for >= _WAITS_TICKS:
                self._unseen = min(self._unseen, 0.0)
            return
        cpu, self._unseen_for = max(self._unseen, 0.0), 0
        self._unseen -= cpu
        for pid in heirs if cpu and self._before_ns else ():
            last = self._before.get(pid)
            percent = _percent(cpu / len(heirs), now_ns - self._since(pid))
            held, threads = (last.resident_bytes, last.threads) if last else (0, 0)
            yield now_ns, pid, percent, held, threads, -1


def _percent(cpu: float, span_ns: int) -> float:
    return 100e9 * cpu / _TICKS_PER_S / max(span_ns, 1)


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
