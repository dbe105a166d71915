"""Usage of CPU, memory and reads by each process of a run: a few reads of /proc each a tick."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

_MAX_PROC_BYTES = 1 << 14


def read_proc_file(path: str) -> bytes:
    """Return what is in a file of /proc, up to 16 KB.

    Raises:
        OSError: It is not there, or belongs to someone else.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MAX_PROC_BYTES)
    finally:
        os.close(descriptor)


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CORES = os.cpu_count() or 1
_LONGEST_WAIT_NS = 3_000_000_000
"""A worker that lives short is heard of some time after its end: rings are drained by turns."""
_ENDED = 0
"""Threads of a process that has ended."""
_Process = tuple[int, int]  # its number, which may be used again, and when it was born
_Row = tuple[int, int, float, int, int, int]


@dataclass(frozen=True, slots=True)
class _ProcessSample:
    """A process at one moment; CPU time in the kernel's ticks."""

    t_ns: int
    pid: int
    born: int
    parent: int
    cpu: int
    ended_cpu: int  # of its children that have ended, and their children
    lived_ns: int
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
        self._before: dict[_Process, _ProcessSample] = {}
        self._before_ns = 0
        self._known_pids: set[int] = set()
        self._unseen = 0.0  # CPU time of processes that have ended, in no row
        self._unseen_since_ns = 0

    def rows(self, pids: Iterable[int]) -> list[_Row]:
        """Return rows of `process_usage`; those of the first call have none.

        Args:
            pids: The processes; also those that are gone, or were before they were looked at.
        """
        began_ns, known = time.monotonic_ns(), set(pids)
        # Whose parent has ended still is the run's, unless its number is another's by now.
        pids = known | {pid for pid, _ in self._before}
        # Parents first: a child that ends meanwhile is not to be in what they were told, and alive.
        looks = [
            look
            for pid in sorted(pids)
            if (look := _sample_process(pid)) is not None
            and (pid in known or _is_in(self._before, look))
        ]
        now = {(look.pid, look.born): look for look in looks}
        found = [self._row(look) for look in looks if self._before_ns]
        ended = self._ended_cpu(now)
        if ended > 0:
            self._unseen_since_ns = self._unseen_since_ns if self._unseen else self._before_ns
            self._unseen += ended
        missed = known - {look.pid for look in looks} - self._known_pids
        found += self._unseen_rows(
            [look for process, look in self._before.items() if process not in now], missed, began_ns
        )
        self._before, self._before_ns = now, began_ns
        self._known_pids |= known
        return found

    def _row(self, look: _ProcessSample) -> _Row:
        before = self._before.get((look.pid, look.born))
        if before is not None:
            cpu, since_ns = float(look.cpu - before.cpu), before.t_ns
            read = -1 if look.read_bytes < 0 else look.read_bytes - before.read_bytes
        else:
            since_ns, read = self._before_ns, look.read_bytes
            cpu = look.cpu * min((look.t_ns - since_ns) / max(look.lived_ns, 1), 1.0)
        percent = _percent(cpu, look.t_ns - since_ns)
        return look.t_ns, look.pid, percent, look.resident_bytes, look.threads, read

    def _ended_cpu(self, now: dict[_Process, _ProcessSample]) -> float:
        """Return what children that ended since the tick before used after they were seen."""
        both = now.keys() & self._before.keys()
        ended = float(sum(now[one].ended_cpu - self._before[one].ended_cpu for one in both))
        parents = {pid for pid, _ in both}
        gone = {pid: look for (pid, born), look in self._before.items() if (pid, born) not in now}
        for look in gone.values():
            parent = look.parent
            for _ in gone:  # what it used went up to the first that is still there
                if parent not in gone:
                    break
                parent = gone[parent].parent
            if parent in parents:
                ended -= look.cpu + look.ended_cpu
        return ended

    def _unseen_rows(
        self, gone: Sequence[_ProcessSample], missed: set[int], now_ns: int
    ) -> Iterator[_Row]:
        """Give rows to processes that have ended, of what nobody saw; other children have none."""
        heirs = len(gone) + len(missed)
        if not heirs:
            if now_ns - self._unseen_since_ns > _LONGEST_WAIT_NS:
                self._unseen = 0.0
            return
        # No more than the cores had time for: else it is of a child that nobody is to hear of.
        most = _CORES * (now_ns - self._unseen_since_ns) / 1e9 * _TICKS_PER_S
        cpu, self._unseen = min(self._unseen, most) / heirs, 0.0
        for look in gone if cpu else ():
            percent = _percent(cpu, now_ns - look.t_ns)
            yield now_ns, look.pid, percent, look.resident_bytes, _ENDED, -1
        for pid in missed if cpu and self._before_ns else ():
            yield now_ns, pid, _percent(cpu, now_ns - self._before_ns), 0, _ENDED, -1


def _is_in(looks: Mapping[_Process, _ProcessSample], look: _ProcessSample) -> bool:
    return (look.pid, look.born) in looks


def with_children(pids: Iterable[int]) -> set[int]:
    """Return processes with all that these have started, and those in turn, and that live.

    A pool of a script's own never trains, and so does not record; what it uses is the run's still.
    Only what a main thread has started is found, as pools and loaders are.
    """
    found, new = set[int](), set(pids)
    while new:
        found |= new
        new = {child for pid in new for child in _children(pid)} - found
    return found


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in read_proc_file(f"/proc/{pid}/task/{pid}/children").split()]
    except (OSError, ValueError):  # it has ended, or this kernel does not tell
        return []


def _percent(cpu: float, span_ns: int) -> float:
    return 100e9 * cpu / _TICKS_PER_S / max(span_ns, 1)


def _sample_process(pid: int) -> _ProcessSample | None:
    """Look at a process; None: it has ended."""
    try:
        stat = read_proc_file(f"/proc/{pid}/stat")
    except OSError:
        return None
    # From the third on, as proc(5) numbers them: the second, a name, may have spaces in it.
    fields = stat.rpartition(b")")[2].split()
    now_ns = time.monotonic_ns()
    alive_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - int(fields[19]) * 10**9 // _TICKS_PER_S
    return _ProcessSample(
        t_ns=now_ns,
        pid=pid,
        born=int(fields[19]),
        parent=int(fields[1]),
        cpu=int(fields[11]) + int(fields[12]),
        ended_cpu=int(fields[13]) + int(fields[14]),
        lived_ns=alive_ns,
        threads=int(fields[17]),
        resident_bytes=_anonymous_bytes(pid, int(fields[21]) * _PAGE_BYTES),
        read_bytes=_read_bytes(pid),
    )


def _anonymous_bytes(pid: int, resident: int) -> int:
    """Return the memory that a process holds, without pages of files.

    A file that is mapped and read through fills memory page by page, and the kernel takes it back
    as it likes: that is a cache, and no growth.

    Args:
        pid: The process.
        resident: What is held with those pages: the answer where the kernel tells no more.
    """
    try:
        _, _, rest = read_proc_file(f"/proc/{pid}/status").partition(b"\nRssFile:")
        return max(resident - int(rest.split(maxsplit=1)[0]) * 1024, 0)
    except (OSError, ValueError, IndexError):
        return resident


def _read_bytes(pid: int) -> int:
    """Return what the process's read calls gave it so far; -1: it belongs to someone else."""
    try:
        return int(read_proc_file(f"/proc/{pid}/io").split(maxsplit=2)[1])  # "rchar: 123"
    except (OSError, ValueError, IndexError):
        return -1
