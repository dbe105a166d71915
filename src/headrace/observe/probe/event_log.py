"""The log of a rank: reports of what its hooks saw, from which rows of steps are made later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from headrace.observe.probe.slow_steps import SlowStepSamples
from headrace.observe.probe.step_clock import RowCallback, RowKind, Segment, StepClock

QueuedReport = tuple[Any, ...]
"""A report as it is queued: what is called with the clock, its time in ns, and further arguments.

A tuple takes less of a step than a function made for each report, which would hold them.
"""
FaultCallback = Callable[[str, Exception], Any]


class Lock(Protocol):
    """A lock among threads, such as `threading.Lock`."""

    def acquire(self, *, timeout: float) -> bool:
        """Return whether it was had within so many seconds."""

    def release(self) -> None:
        """Give it up."""


LockFactory = Callable[[], Lock]

# About 40 steps; beyond that, the thread that reports processes some itself.
MAX_PENDING_EVENTS = 256
_EVENTS_A_TURN = 16  # twice the number of reports in a step
_LONGEST_WAIT_S = 1.0
_LAST_WAIT_S = 10.0  # at the end there is no later time


class EventLog:
    """The queued reports of a rank, each with its time, and the clock that makes rows of them.

    Args:
        emit: Gets each row.
        on_fault: Gets the place of a report that failed, and its error.
        new_lock: Makes a lock among threads.
    """

    def __init__(self, emit: RowCallback, on_fault: FaultCallback, new_lock: LockFactory) -> None:
        self._emit = emit
        self._on_fault = on_fault
        self._new_lock = new_lock
        self._clock = StepClock(self._emit_row)
        self._lock = new_lock()  # for processing; queueing needs no lock
        self.waiting: deque[QueuedReport] = deque()
        self.steps_ended = 0
        self.slow_steps = SlowStepSamples()

    def forked(self) -> None:
        """Start again in a forked child; unfinished steps belong to the parent."""
        self._lock = self._new_lock()
        self.slow_steps.forget()
        self.waiting.clear()
        self._clock.forget()

    def request_phase(self, receive_phase: Callable[[str], None]) -> None:
        """Have `receive_phase` called, later, with the rank's phase at this moment."""
        self.waiting.append((lambda clock, _: receive_phase(clock.phase), 0))

    def settle_now(self) -> None:
        """Process what is queued, after a thread that is doing so has finished."""
        self.settle(wait_s=_LONGEST_WAIT_S)

    def limit_backlog(self) -> None:
        """Process a few reports if too many are queued."""
        if len(self.waiting) > MAX_PENDING_EVENTS:
            self.settle(most=_EVENTS_A_TURN)

    def close(self, at_ns: int, *, recording: bool) -> None:
        """End the rank's log; if not `recording`, drop what is unfinished."""
        if not self.settle(wait_s=_LAST_WAIT_S):
            late = TimeoutError(f"the last steps are lost: not worked out in {_LAST_WAIT_S:.0f} s")
            self._on_fault("Journal.close", late)
            return  # another thread holds the clock
        if recording:
            self._clock.close(at_ns)
        else:
            self._clock.forget()

    def settle(self, *, most: int | None = None, wait_s: float = 0.0) -> bool:
        """Process what is queued; return False if another thread did so for too long."""
        if not self._lock.acquire(timeout=wait_s):
            return False
        try:
            waiting, clock = self.waiting, self._clock
            count = len(waiting)  # the rank may add more meanwhile
            for _ in range(count if most is None else min(most, count)):
                report, at_ns, *values = waiting.popleft()
                try:
                    report(clock, at_ns, *values)
                except Exception as error:  # noqa: BLE001 - the script must not feel it
                    self._on_fault("Journal", error)
        finally:
            self._lock.release()
        return True

    def _emit_row(self, kind: RowKind, number: int, segment: Segment) -> None:
        self._emit(kind, number, segment)
        self.slow_steps.row_ended(segment.start_ns, segment.wall_ns, trains=kind == "train")
        self.steps_ended += int(kind == "train")
