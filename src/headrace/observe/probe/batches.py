"""What making a batch takes, in a worker or, where there is none, in the rank itself.

A row takes 30 us, and twice that where caches hold what the batches are made of. So once a process
has made some batches, it notes what they took, and the thread that samples stacks writes the rows,
five times a second.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from headrace.observe.probe import proc
from headrace.observe.probe.receiving import RECEIVER, Received
from headrace.observe.probe.session import SESSION, guarded
from headrace.observe.probe.transforms import TIMER
from headrace.records.schema import BATCHES

_LOOK_EVERY_NS, _LOOK_LATER_EVERY_NS = 20_000_000, 500_000_000
"""How often reads are looked at. A look takes 10 us, and 70 where caches hold what the batches are
made of. What is read after the last one is in no row, so a process that lives short looks often."""
_LOOKS_AT_FIRST = 100
_AT_ONCE_AT_FIRST = 100  # batches
_LATEST_NS = 300_000_000  # `records.recent` counts on it
"""After so long, who makes batches writes the rows, where no other thread has."""
_LAST_WAIT_S = 10.0


class _Made(NamedTuple):
    """What is noted of a batch: its row, in parts, but for the reads that the kernel counts."""

    begin: tuple[int, ...]
    received: tuple[Received, Received]
    """Sums when the batch before it was made, and when it was."""
    read_ns: int
    end: tuple[int, ...]


class BatchRecorder:
    """Writes a row for each batch that this process makes.

    Attributes:
        phase: "work" while a batch is made, else "idle"; the stack sampler asks.
        collate_ns: Of the batch at work: time in collating; the hooks add to it.
        send_ns: Since the last batch: time in handing over; the sender adds to it.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.phase = "idle"
        self._turn = threading.Lock()  # of the thread that makes a batch: what else is made is not
        self.collate_ns = 0
        self.send_ns = 0
        self._number = 0
        self._ended_ns = self._settled_ns = 0
        self._waiting: deque[_Made] = deque()
        self._settling = threading.Lock()
        self._read_bytes = self._reads = self._looks = self._looked_ns = 0
        self._received: Received | None = None
        self._owner = os.getpid()

    @guarded
    def began(self) -> tuple[int, int, int] | None:
        """A batch begins; None where one is being made already."""
        if self._owner != os.getpid():
            self._begin()
        if not self._turn.acquire(blocking=False):
            return None
        try:
            began = self._begun()
        except BaseException:
            self._turn.release()
            raise
        if began is None:
            self._turn.release()
        return began

    def _begun(self) -> tuple[int, int, int] | None:
        if not SESSION.on:
            self._ended_ns = 0
            self._received = None
            return None
        if not self._looked_ns:
            self._read_since()
        if self._received is None:
            self._received = RECEIVER.sums
        RECEIVER.begin()
        self.phase = "work"
        self.collate_ns = 0
        return time.monotonic_ns(), time.thread_time_ns(), time.process_time_ns()

    def ended(self, began: tuple[int, int, int], loader: int, samples: int) -> None:
        """The batch is made."""
        try:
            cpu_ns, process_cpu_ns = time.thread_time_ns(), time.process_time_ns()
            now_ns = time.monotonic_ns()
        finally:  # a signal may have raised an error
            self.failed()
        self._note(began, (now_ns, cpu_ns, process_cpu_ns), loader, samples)

    def failed(self) -> None:
        """No batch is being made any more: an error was raised, or there was no further one."""
        # Also where recording has stopped meanwhile.
        RECEIVER.end()  # first: another thread's batch may begin once this is over
        self.phase = "idle"
        if self._turn.locked():  # else this is a child that was forked amid a batch
            self._turn.release()

    @guarded
    def settle(self, wait_s: float = 0.0) -> None:
        """Write the rows of what was noted; where another thread is at it, leave it that one.

        Args:
            wait_s: How long that other thread may take to be done with its part.
        """
        if self._owner != os.getpid() or not self._settling.acquire(timeout=wait_s):
            return
        try:
            for left in reversed(range(len(self._waiting))):
                made, reads = self._waiting.popleft(), (0, 0) if left else self._read_since()
                self._write(made, reads=reads)
            self._settled_ns = time.monotonic_ns()
        finally:
            self._settling.release()

    def settle_at_last(self) -> None:
        """Likewise, where there is no later time."""
        self.settle(_LAST_WAIT_S)

    def _write(self, made: _Made, *, reads: tuple[int, int]) -> None:
        before, now = made.received
        SESSION.write(
            BATCHES, SESSION.rank, *made.begin,
            reads[0] + now.uncounted_bytes - before.uncounted_bytes,
            reads[1] + now.uncounted_reads - before.uncounted_reads,
            now.bytes - before.bytes, made.read_ns, *made.end,
        )  # fmt: skip

    @guarded
    def _note(
        self, began: tuple[int, int, int], ended: tuple[int, int, int], loader: int, samples: int
    ) -> None:
        now_ns, cpu_ns, process_cpu_ns = ended
        start_ns, cpu_before_ns, process_cpu_before_ns = began
        idle_ns = start_ns - self._ended_ns if self._ended_ns else 0
        before, self._received = self._received or Received(), RECEIVER.sums
        begin = (
            loader, SESSION.worker, self._number, start_ns, now_ns - start_ns,
            cpu_ns - cpu_before_ns, process_cpu_ns - process_cpu_before_ns, samples,
        )  # fmt: skip
        end = (self.collate_ns, idle_ns, self.send_ns)
        self._waiting.append(_Made(begin, (before, self._received), RECEIVER.read_ns, end))
        self._number += 1
        self.send_ns = 0
        if self._number <= _AT_ONCE_AT_FIRST or now_ns - self._settled_ns > _LATEST_NS:
            self.settle()
        self._ended_ns = time.monotonic_ns()

    def collating(self, collate: Callable[..., Any]) -> Callable[..., Any]:
        """Return `collate` with its time added to that of the batch at work."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began_ns = time.monotonic_ns()
            try:
                if TIMER.active:
                    return TIMER.call("collate_fn", collate, collate, *args, **kwargs)
                return collate(*args, **kwargs)
            finally:
                self.collate_ns += time.monotonic_ns() - began_ns

        return timed

    def ask_phase(self, tell: Callable[[str], None]) -> None:
        """Call `tell` with what the process does now."""
        tell(self.phase)

    def _read_since(self) -> tuple[int, int]:
        """Return bytes and read calls of this process since the last look; 0 if that was just now.

        The look itself is one read, which the next look sees and leaves out.
        """
        now_ns = time.monotonic_ns()
        often = self._looks < _LOOKS_AT_FIRST
        if now_ns - self._looked_ns < (_LOOK_EVERY_NS if often else _LOOK_LATER_EVERY_NS):
            return 0, 0
        self._looks, self._looked_ns = self._looks + 1, now_ns
        read_bytes, reads = self._read_bytes, self._reads
        with suppress(OSError, ValueError, IndexError):
            words = proc.read("/proc/self/io").split()  # rchar: 1 wchar: 2 syscr: 3 ...
            self._read_bytes, self._reads = int(words[1]), int(words[5])
        return self._read_bytes - read_bytes, max(self._reads - reads - 1, 0)


BATCHES_MADE = BatchRecorder()
