"""Phases by the device's clock: what the host reports, told again with the times of events.

The host only puts work into the device's queue; when the device came to it, events in that queue
tell. So beside each report of the host an event is recorded, and once the device has passed it the
report goes to a second `StepClock`, with the device's time instead of the host's. Both clocks cut
their time alike, so a row of one has the number of its row of the other. Data wait by the device's
clock is what the device felt of it: none, where it still had work to do meanwhile.

Nothing waits for an event: it is asked whether it has passed, and asked again later. Where an event
could not be recorded, or too many have not passed, the rows that this concerns are given up and
counted.

Pure: events are handed in; nothing here knows torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from headrace.observe.probe.segments import Emit, RowKind, Segment
from headrace.observe.probe.steps import StepClock

MOST_WAITING = 1024
"""Events that may not have passed yet. A device's queue holds about so many launches, and some ten
events make a step."""

Report = Callable[[StepClock, int], None]
"""What the host reports: called with a clock and a time of it."""


class TimedEvent(Protocol):
    """A mark in the device's queue, as `torch.Event(enable_timing=True)` is one."""

    def record(self) -> Any:
        """Put it at the queue's end; it may have been in the queue before."""

    def query(self) -> bool:
        """Return whether the device has passed it, without waiting."""

    def elapsed_time(self, end: Any) -> float:
        """Return milliseconds from this to another event; both have passed."""


class DeviceClock:
    """Tells what the host reports to a clock that goes by the device's time.

    Args:
        emit: Called with each finished row whose time is known.
        new_event: Makes an event; None where none can be recorded now.

    Attributes:
        lost: Rows that were given up since the first event.
    """

    def __init__(self, emit: Emit, new_event: Callable[[], TimedEvent | None]) -> None:
        self._emit = emit
        self._new_event = new_event
        self._clock = StepClock(self._tell)
        self._waiting: deque[tuple[TimedEvent | None, Report]] = deque()
        self._pool: list[TimedEvent] = []
        self._last: TimedEvent | None = None
        self._now_ns = 0
        self._unknown_ns = 0  # up to here the device's time has gaps
        self._has_begun = False
        self.lost = 0

    def report(self, report: Report, *, timed: bool = True) -> None:
        """The host reports something at this place of the device's queue.

        Args:
            report: Will be called with the device's clock and time, once that is known.
            timed: Whether the time is to be had: an event can be recorded.
        """
        event = self._recorded() if timed else None
        self._has_begun |= event is not None
        self._waiting.append((event, report))
        if event is None and len(self._waiting) == 1:  # nothing to wait for: no device is in use
            self.poll()
        elif len(self._waiting) > MOST_WAITING:
            if timed:  # else not even asking may be allowed
                self.poll()
            if len(self._waiting) > MOST_WAITING:
                self.give_up()

    def poll(self) -> None:
        """Go on with what the device has passed."""
        while self._waiting:
            event, report = self._waiting[0]
            if event is not None and not event.query():
                return
            self._waiting.popleft()
            self._pass(event, report)

    def give_up(self) -> None:
        """Wait no longer for the events that have not passed."""
        waiting, self._waiting = self._waiting, deque()
        for event, report in waiting:
            if event is not None:
                self._pool.append(event)
            self._pass(None, report)

    def _recorded(self) -> TimedEvent | None:
        event = self._pool.pop() if self._pool else self._new_event()
        if event is not None:
            event.record()
        return event

    def _pass(self, event: TimedEvent | None, report: Report) -> None:
        if event is None:
            self._unknown_ns = self._now_ns
        elif self._last is None:
            self._now_ns += 1  # so that what begins here is told from the gap before it
        else:  # unrounded times would add up to more than the whole; a nanosecond does not matter
            self._now_ns += round(self._last.elapsed_time(event) * 1e6)
        if self._last is not None:
            self._pool.append(self._last)
        self._last = event
        report(self._clock, self._now_ns)

    def _tell(self, kind: RowKind, number: int, segment: Segment) -> None:
        if segment.start_ns <= self._unknown_ns:
            self.lost += int(self._has_begun)
        else:
            self._emit(kind, number, segment)
