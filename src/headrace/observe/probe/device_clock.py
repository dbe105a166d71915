"""Phases of steps by the accelerator's clock, from events in its queue.

The host only puts work into the device's queue; events in that queue tell when the device reached
it. So an event is recorded with each report of the host, and once the device has passed the event,
the report goes to a second `StepClock` with the device's time instead of the host's. Both clocks
cut time in the same way, so their rows have the same numbers. Data wait by the device's clock is
the time for which the device was idle: zero where it still had work queued.

A device has several queues (streams), and what lies in one of them tells nothing of another. All
events go into the one in which the script trains, whichever is current: a prefetcher copies the
next batch in a stream of its own while the device is at this one, which costs the step nothing.

Events are polled, never waited for, and by the training thread alone. Rows are made of them by
another thread, as by the host's clock. Where an event could not be recorded, or too many have not
passed, the rows concerned are dropped and counted.

Pure: events are passed in. `device_recorder.py` makes them with torch and writes the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from headrace.observe.probe.report_queue import FaultCallback, LockFactory, ReportQueue
from headrace.observe.probe.step_clock import CopyCallback, CopyPlace, RowCallback, StepClock
from headrace.observe.probe.step_segments import RowKind, Segment

MAX_PENDING_EVENTS = 1024
"""Most events that have not passed yet. A device's queue holds about 1,000 launches, and a step has
about ten events."""

HostReport = Callable[..., None]
"""A report of the host: called with a clock, the time by it in ns, and further arguments."""


class TimedEvent(Protocol):
    """An event in the device's queue, such as `torch.Event(enable_timing=True)`."""

    def record(self, stream: Any = None) -> Any:
        """Put the event at a stream's end, the current one's if None; it may be recorded again."""

    def query(self) -> bool:
        """Return whether the device has passed the event, without waiting."""

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds from this event to `end`; both have passed."""


def _raise(_place: str, error: Exception) -> None:
    raise error


class DeviceClock:
    """Passes the host's reports to a step clock that runs on the device's time.

    Args:
        emit: Gets each row whose time is known.
        new_event: Returns None if no event can be recorded now.
        new_lock: Makes a lock among threads.
        on_copy: Gets each copy.
        on_fault: Gets the errors of reports, in the thread that settles.
    """

    def __init__(
        self,
        emit: RowCallback,
        new_event: Callable[[], TimedEvent | None],
        new_lock: LockFactory,
        on_copy: CopyCallback | None = None,
        on_fault: FaultCallback = _raise,
    ) -> None:
        self._emit = emit
        self._new_event = new_event
        self.timed = ReportQueue(StepClock(self._emit_row, on_copy), on_fault, new_lock)
        """Reports whose time by the device is known, or never will be."""
        self._waiting: deque[tuple[TimedEvent | None, HostReport, tuple[Any, ...]]] = deque()
        self._pool: list[TimedEvent] = []
        self._last: TimedEvent | None = None
        self._now_ns = 0
        self._unknown_ns = 0  # until then the device's time has gaps
        self._has_begun = False
        self.lost = 0

    def report(
        self, report: HostReport, *values: Any, timed: bool = True, stream: Any = None
    ) -> None:
        """Add a report at this place of the device's queue.

        Args:
            report: The report.
            values: Its further arguments.
            timed: Whether events can be recorded now.
            stream: In which the event is recorded; None: the current one.
        """
        event = None
        if timed:
            event = self._pool.pop() if self._pool else self._new_event()
            if event is not None:
                event.record() if stream is None else event.record(stream)
                self._has_begun = True
        waiting = self._waiting
        waiting.append((event, report, values))
        if event is None and len(waiting) == 1:  # no device is in use
            self.poll()
        elif len(waiting) > MAX_PENDING_EVENTS:
            if timed:  # otherwise even polling may be forbidden (graph capture)
                self.poll()
            if len(waiting) > MAX_PENDING_EVENTS:
                self.give_up()

    def poll(self) -> None:
        """Queue the reports whose events the device has passed, with its time."""
        waiting = self._waiting
        while waiting:
            event, report, values = waiting[0]
            if event is None:
                self._pass_untimed(report, values)
            elif event.query():
                self._pass(event, report, values)
            else:
                break
            waiting.popleft()
        self.timed.limit_backlog()

    def give_up(self) -> None:
        """Queue all waiting reports without a time; their rows are dropped."""
        while self._waiting:
            event, report, values = self._waiting.popleft()
            if event is not None:
                self._pool.append(event)
            self._pass_untimed(report, values)

    def _pass(self, event: TimedEvent, report: HostReport, values: tuple[Any, ...]) -> None:
        last = self._last
        if last is None:
            self._now_ns += 1  # so that a row that begins here starts after the gap
        else:  # truncated times would add up to more than the whole
            elapsed_ns = round(last.elapsed_time(event) * 1e6)
            if elapsed_ns < 0:  # the script trains in another stream now, which is ahead
                self._pool.append(event)
                self.timed.waiting.append((report, self._now_ns, *values))
                return
            self._now_ns += elapsed_ns
            self._pool.append(last)
        self._last = event
        self.timed.waiting.append((report, self._now_ns, *values))

    def _pass_untimed(self, report: HostReport, values: tuple[Any, ...]) -> None:
        if self._last is not None:
            self._pool.append(self._last)
            self._last = None
        self.timed.waiting.append((self._report_untimed, self._now_ns, report, values))

    def _report_untimed(
        self, clock: StepClock, at_ns: int, report: HostReport, values: tuple[Any, ...]
    ) -> None:
        self._unknown_ns = at_ns
        report(clock, at_ns, *values)

    def _emit_row(self, kind: RowKind, number: int, segment: Segment) -> None:
        if segment.start_ns <= self._unknown_ns:
            self.lost += int(self._has_begun)
        else:
            self._emit(kind, number, segment)


_FIRST_PERIOD_NS, _PERIOD_SHARE = 1_000_000_000, 0.1
"""Sums of copies are written after a second, and then after a tenth of all the time before: some
hundred rows of a line in a week."""


class CopySums:
    """Copies by the lines that make them, and their time by the device's clock."""

    def __init__(self, write: Callable[[CopyPlace, int, int], None]) -> None:
        self._write = write
        self._sums: dict[CopyPlace, list[int]] = {}
        self._began_ns = self._due_ns = 0

    def add(self, place: CopyPlace, spent_ns: int) -> None:
        """Add a copy."""
        sums = self._sums.setdefault(place, [0, 0])
        sums[0] += 1
        sums[1] += spent_ns

    def write(self, now_ns: int | None = None) -> None:
        """Write the sums since they were written last, if that is due by now; None: in any case."""
        if now_ns is not None:
            if not self._began_ns:
                self._began_ns, self._due_ns = now_ns, now_ns + _FIRST_PERIOD_NS
            if now_ns < self._due_ns:
                return
            period_ns = int((now_ns - self._began_ns) * _PERIOD_SHARE)
            self._due_ns = now_ns + max(period_ns, _FIRST_PERIOD_NS)
        sums, self._sums = self._sums, {}
        for place, (count, spent_ns) in sums.items():
            self._write(place, count, spent_ns)
