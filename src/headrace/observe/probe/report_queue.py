"""Reports of a rank's hooks on their way to a step clock, which another thread passes them to.

A hook only queues what happened and when: making rows of it takes ten times as long, and needs no
time of the training thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from headrace.observe.probe.step_clock import StepClock

QueuedReport = tuple[Any, ...]
"""A report as it is queued: what is called with the clock, its time in ns, and further arguments.

A tuple takes less of a step than a function made for each report, which would hold them.
"""
FaultCallback = Callable[[str, Exception], Any]
"""Gets the place of a report that failed, and its error."""


class Lock(Protocol):
    """A lock among threads, such as `threading.Lock`."""

    def acquire(self, *, timeout: float) -> bool:
        """Return whether it was had within so many seconds."""

    def release(self) -> None:
        """Give it up."""


LockFactory = Callable[[], Lock]

MAX_QUEUED_REPORTS = 4096
"""Steps of half a millisecond queue so many in the 0.2 s between two turns of the thread that
samples stacks. Beyond that the thread that reports processes some itself."""
_REPORTS_A_TURN = 16  # twice the number of reports in a step


class ReportQueue:
    """Reports in their order, each with its time; any thread may pass them to the clock.

    Args:
        clock: Gets the reports.
        on_fault: Gets the error of a report that failed; those after it are passed all the same.
        new_lock: Makes a lock among threads.
    """

    def __init__(self, clock: StepClock, on_fault: FaultCallback, new_lock: LockFactory) -> None:
        self.clock = clock
        self.waiting: deque[QueuedReport] = deque()
        self._on_fault = on_fault
        self._new_lock = new_lock
        self._lock = new_lock()  # for processing; queueing needs no lock

    def forked(self) -> None:
        """Start again in a forked child; unfinished steps belong to the parent."""
        self._lock = self._new_lock()
        self.waiting.clear()
        self.clock.forget()

    def limit_backlog(self) -> None:
        """Process a few reports if too many are queued."""
        if len(self.waiting) > MAX_QUEUED_REPORTS:
            self.settle(most=_REPORTS_A_TURN)

    def settle(self, *, most: int | None = None, wait_s: float = 0.0) -> bool:
        """Process what is queued; return False if another thread did so for too long."""
        if not self._lock.acquire(timeout=wait_s):
            return False
        try:
            waiting, clock = self.waiting, self.clock
            count = len(waiting)  # the rank may add more meanwhile
            for _ in range(count if most is None else min(most, count)):
                report, at_ns, *values = waiting.popleft()
                try:
                    report(clock, at_ns, *values)
                except Exception as error:  # noqa: BLE001 - the script must not feel it
                    self._on_fault("ReportQueue", error)
        finally:
            self._lock.release()
        return True
