"""Usage of CPU, memory and reads by each process of a run, from a few reads of /proc a tick."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

_MAX_PROC_BYTES = 1 << 14


def read_proc_file(path: str) -> bytes:
    """Return the content of a file in /proc, up to 16 KB; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MAX_PROC_BYTES)
    finally:
        os.close(descriptor)


_LOOK_EVERY_NS, _LOOK_LATER_EVERY_NS = 20_000_000, 200_000_000
"""Time between reads of /proc/self/io, early and later: one takes 10 us, or 70 with cold caches.
Bytes read after the last one are in no row, so short-lived processes read it often."""
_FREQUENT_LOOKS = 100


class OwnReads:
    """What this process reads, by the kernel's count: looked at often first, and seldom later."""

    def __init__(self) -> None:
        self._bytes = self._calls = self._looks = self._looked_ns = 0

    def begin(self, now_ns: int) -> None:
        """Begin to count, the first time and after a pause."""
        if not self._looked_ns:
            self.since(now_ns)

    def pause(self) -> None:
        """Count nothing until `begin`."""
        self._looked_ns = 0

    def since(self, now_ns: int) -> tuple[int, int]:
        """Return bytes and read calls since the last look, 0 if that was just before `now_ns`."""
        often = self._looks < _FREQUENT_LOOKS
        if now_ns - self._looked_ns < (_LOOK_EVERY_NS if often else _LOOK_LATER_EVERY_NS):
            return 0, 0
        self._looks, self._looked_ns = self._looks + 1, now_ns
        read_bytes, calls = self._bytes, self._calls
        with suppress(OSError, ValueError, IndexError):
            words = read_proc_file("/proc/self/io").split()  # rchar: 1 wchar: 2 syscr: 3 ...
            self._bytes, self._calls = int(words[1]), int(words[5])
        return self._bytes - read_bytes, max(self._calls - calls - 1, 0)


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CORES = os.cpu_count() or 1
_LONGEST_WAIT_NS = 3_000_000_000
"""A short-lived worker is known only some time after its end, when its ring is drained."""
_ENDED = 0
"""Number of threads in the row of a process that has ended."""
_Process = tuple[int, int]  # pid, which may be reused, and start time
_Row = tuple[int, int, float, int, int, int]


@dataclass(frozen=True, slots=True)
class _ProcessSample:
    """The state of a process at one moment; CPU time in clock ticks of the kernel."""

    t_ns: int
    pid: int
    born: int
    parent: int
    cpu: int
    ended_cpu: int  # of its descendants that have ended
    lived_ns: int
    threads: int
    resident_bytes: int
    read_bytes: int


class ProcessUsage:
    """Samples processes; a row holds what a process used since its previous sample.

    CPU time of the run must not be taken for that of other programs, however short a process lives.
    So a new process's row holds its use since the tick before, and CPU time of children that ended
    unseen, which the kernel adds to their parents, goes to rows of the children.
    """

    def __init__(self) -> None:
        self._before: dict[_Process, _ProcessSample] = {}
        self._before_ns = 0
        self._known_pids: set[int] = set()
        self._unseen = 0.0  # CPU ticks of ended processes that are in no row yet
        self._unseen_since_ns = 0

    def rows(self, pids: Iterable[int]) -> list[_Row]:
        """Return rows of `process_usage` for the run's processes, also ended ones; first none."""
        began_ns, known = time.monotonic_ns(), set(pids)
        # A process whose parent has ended is still the run's, unless its pid was reused.
        pids = known | {pid for pid, _ in self._before}
        # Parents first, so that a child that ends meanwhile is not counted twice.
        samples = [
            sample
            for pid in sorted(pids)
            if (sample := _sample_process(pid)) is not None
            and (pid in known or (pid, sample.born) in self._before)
        ]
        now = {(sample.pid, sample.born): sample for sample in samples}
        rows_found = [self._row(sample) for sample in samples if self._before_ns]
        ended = self._ended_cpu(now)
        if ended > 0:
            self._unseen_since_ns = self._unseen_since_ns if self._unseen else self._before_ns
            self._unseen += ended
        missed = known - {sample.pid for sample in samples} - self._known_pids
        rows_found += self._unseen_rows(
            [sample for process, sample in self._before.items() if process not in now],
            missed,
            began_ns,
        )
        self._before, self._before_ns = now, began_ns
        self._known_pids |= known
        return rows_found

    def _row(self, sample: _ProcessSample) -> _Row:
        before = self._before.get((sample.pid, sample.born))
        if before is not None:
            cpu, since_ns = float(sample.cpu - before.cpu), before.t_ns
            read = -1 if sample.read_bytes < 0 else sample.read_bytes - before.read_bytes
        else:
            since_ns, read = self._before_ns, sample.read_bytes
            cpu = sample.cpu * min((sample.t_ns - since_ns) / max(sample.lived_ns, 1), 1.0)
        percent = _percent(cpu, sample.t_ns - since_ns)
        return sample.t_ns, sample.pid, percent, sample.resident_bytes, sample.threads, read

    def _ended_cpu(self, now: dict[_Process, _ProcessSample]) -> float:
        """Return the CPU ticks that ended children used after their last sample."""
        both = now.keys() & self._before.keys()
        ended = float(sum(now[one].ended_cpu - self._before[one].ended_cpu for one in both))
        parents = {pid for pid, _ in both}
        gone = {
            pid: sample for (pid, born), sample in self._before.items() if (pid, born) not in now
        }
        for sample in gone.values():
            parent = sample.parent
            for _ in gone:  # its CPU time went to the nearest ancestor still alive
                if parent not in gone:
                    break
                parent = gone[parent].parent
            if parent in parents:
                ended -= sample.cpu + sample.ended_cpu
        return ended

    def _unseen_rows(
        self, gone: Sequence[_ProcessSample], missed: set[int], now_ns: int
    ) -> Iterator[_Row]:
        """Yield rows that share the unseen CPU time among the processes that have ended."""
        sharers = len(gone) + len(missed)
        if not sharers:
            if now_ns - self._unseen_since_ns > _LONGEST_WAIT_NS:
                self._unseen = 0.0
            return
        # At most what the cores had time for: the rest is of children that never record.
        limit = _CORES * (now_ns - self._unseen_since_ns) / 1e9 * _TICKS_PER_S
        cpu, self._unseen = min(self._unseen, limit) / sharers, 0.0
        for sample in gone if cpu else ():
            percent = _percent(cpu, now_ns - sample.t_ns)
            yield now_ns, sample.pid, percent, sample.resident_bytes, _ENDED, -1
        for pid in missed if cpu and self._before_ns else ():
            yield now_ns, pid, _percent(cpu, now_ns - self._before_ns), 0, _ENDED, -1


def with_children(pids: Iterable[int]) -> set[int]:
    """Return the processes and all their living descendants.

    A script's own process pool never trains, and so does not record, but its use is the run's. Only
    children started by main threads are found, as those of pools and loaders are.
    """
    found, new = set[int](), set(pids)
    while new:
        found |= new
        new = {child for pid in new for child in _children(pid)} - found
    return found


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in read_proc_file(f"/proc/{pid}/task/{pid}/children").split()]
    except (OSError, ValueError):  # it has ended, or this kernel lacks the file
        return []


def _percent(cpu: float, span_ns: int) -> float:
    return 100e9 * cpu / _TICKS_PER_S / max(span_ns, 1)


def _sample_process(pid: int) -> _ProcessSample | None:
    """Return a sample of a process; None if it has ended."""
    try:
        stat = read_proc_file(f"/proc/{pid}/stat")
    except OSError:
        return None
    # From the third field of proc(5) on: the second, a name, may contain spaces.
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
    """Return the memory of a process without pages of files; `resident`, with those, if unknown.

    A mapped file that is read fills memory page by page, and the kernel reclaims it as needed: that
    is a cache, not growth.
    """
    try:
        _, _, rest = read_proc_file(f"/proc/{pid}/status").partition(b"\nRssFile:")
        return max(resident - int(rest.split(maxsplit=1)[0]) * 1024, 0)
    except (OSError, ValueError, IndexError):
        return resident


def _read_bytes(pid: int) -> int:
    """Return the bytes of the process's read calls so far; -1 if it belongs to another user."""
    try:
        return int(read_proc_file(f"/proc/{pid}/io").split(maxsplit=2)[1])  # "rchar: 123"
    except (OSError, ValueError, IndexError):
        return -1
