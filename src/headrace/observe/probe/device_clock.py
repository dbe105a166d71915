"""Phases of steps by the accelerator's clock, from events in its queue.

The host only puts work into the device's queue; events in that queue tell when the device reached
it. So an event is recorded with each report of the host, and once the device has passed the event,
the report goes to a second `StepClock` with the device's time instead of the host's. Both clocks
cut time in the same way, so their rows have the same numbers. Data wait by the device's clock is
the time for which the device was idle: zero where it still had work queued.

A device has several queues (streams), and what lies in one of them tells nothing of another. All
events go into the one in which the script trains, whichever is current: a prefetcher copies the
next batch in a stream of its own while the device is at this one, which costs the step nothing.

Events are polled, never waited for. Where an event could not be recorded, or too many have not
passed, the rows concerned are dropped and counted.

`DeviceClock` is pure: events are passed in. `DeviceStepRecorder` makes them with torch and writes
the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from types import ModuleType
from typing import Any, Protocol

from headrace.observe.probe.recording_session import SESSION
from headrace.observe.probe.step_clock import (
    CopyCallback,
    CopyPlace,
    RowCallback,
    RowKind,
    Segment,
    StepClock,
)
from headrace.records.schema import DEVICE_COPIES, DEVICE_STEPS

MAX_PENDING_EVENTS = 1024
"""Most events that have not passed yet. A device's queue holds about 1,000 launches, and a step has
about ten events."""

HostReport = Callable[[StepClock, int], None]
"""A report of the host: called with a clock and the time by that clock."""


class TimedEvent(Protocol):
    """An event in the device's queue, such as `torch.Event(enable_timing=True)`."""

    def record(self, stream: Any = None) -> Any:
        """Put the event at a stream's end, the current one's if None; it may be recorded again."""

    def query(self) -> bool:
        """Return whether the device has passed the event, without waiting."""

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds from this event to `end`; both have passed."""


class DeviceClock:
    """Passes the host's reports to a step clock that runs on the device's time.

    Rows whose time is known go to `emit`, and copies to `on_copy`; `new_event` returns None if none
    can be recorded now.
    """

    def __init__(
        self,
        emit: RowCallback,
        new_event: Callable[[], TimedEvent | None],
        on_copy: CopyCallback | None = None,
    ) -> None:
        self._emit = emit
        self._new_event = new_event
        self._clock = StepClock(self._emit_row, on_copy)
        self._waiting: deque[tuple[TimedEvent | None, HostReport]] = deque()
        self._pool: list[TimedEvent] = []
        self._last: TimedEvent | None = None
        self._now_ns = 0
        self._unknown_ns = 0  # until then the device's time has gaps
        self._has_begun = False
        self.lost = 0

    def report(self, report: HostReport, *, timed: bool = True, stream: Any = None) -> None:
        """Add a report at this place of the device's queue.

        Args:
            report: The report.
            timed: Whether events can be recorded now.
            stream: In which the event is recorded; None: the current one.
        """
        event = self._recorded(stream) if timed else None
        self._has_begun |= event is not None
        self._waiting.append((event, report))
        if event is None and len(self._waiting) == 1:  # no device is in use
            self.poll()
        elif len(self._waiting) > MAX_PENDING_EVENTS:
            if timed:  # otherwise even polling may be forbidden (graph capture)
                self.poll()
            if len(self._waiting) > MAX_PENDING_EVENTS:
                self.give_up()

    def poll(self) -> None:
        """Process the reports whose events the device has passed."""
        while self._waiting:
            event, report = self._waiting[0]
            if event is not None and not event.query():
                return
            self._waiting.popleft()
            self._pass(event, report)

    def give_up(self) -> None:
        """Process all waiting reports without a time; their rows are dropped."""
        waiting, self._waiting = self._waiting, deque()
        for event, report in waiting:
            if event is not None:
                self._pool.append(event)
            self._pass(None, report)

    def _recorded(self, stream: Any) -> TimedEvent | None:
        event = self._pool.pop() if self._pool else self._new_event()
        if event is not None:
            event.record() if stream is None else event.record(stream)
        return event

    def _pass(self, event: TimedEvent | None, report: HostReport) -> None:
        if event is None:
            self._unknown_ns = self._now_ns
        elif self._last is None:
            self._now_ns += 1  # so that a row that begins here starts after the gap
        else:  # truncated times would add up to more than the whole
            elapsed_ns = round(self._last.elapsed_time(event) * 1e6)
            if elapsed_ns < 0:  # the script trains in another stream now, which is ahead
                self._pool.append(event)
                report(self._clock, self._now_ns)
                return
            self._now_ns += elapsed_ns
        if self._last is not None:
            self._pool.append(self._last)
        self._last = event
        report(self._clock, self._now_ns)

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


_PARENT_CLOCKS: list[Any] = []


class DeviceStepRecorder:
    """The device's side of a rank's steps. A fault here ends this part of recording alone."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._copies = CopySums(_write_copies)
        self._clock = DeviceClock(_write, self._new_event, self._copies.add)
        self._device: ModuleType | None = None  # torch's module for it, once in use
        self._stream: Any = None  # in which the script trains; None: not known yet
        self._kind = ""
        self._is_capturing: Callable[[], bool] = lambda: False
        self.absent = False

    def forked(self) -> None:
        """Start again in a forked child; unfinished steps belong to the parent."""
        absent = self.absent or self._device is not None  # a child cannot use its parent's device
        # Keep the parent's events alive: the child must not even destroy them.
        _PARENT_CLOCKS.append(self._clock)
        self._begin()
        self.absent = absent

    def trains_here(self) -> None:
        """Note that the script trains in the stream that is current now."""
        if self.absent or self._device is None:
            return
        import torch

        try:
            self._stream = torch.accelerator.current_stream()  # a fifth of torch.cuda's time
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            self._stop(error)

    def report(self, report: HostReport) -> None:
        """Pass a report of the host to the device's clock."""
        if self.absent:
            return
        try:
            self._clock.report(report, timed=self._is_usable(), stream=self._stream)
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            self._stop(error)

    def row_ended(self) -> None:
        """Poll the device's events: the host has finished a row."""
        if self.absent:
            return
        try:
            if self._device is not None and not self._is_capturing():
                self._clock.poll()
                self._copies.write(monotonic_ns())
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            self._stop(error)

    def close(self) -> None:
        """Close the device's clock at the process's end; events not passed by now are dropped."""
        self.report(lambda clock, at_ns: clock.close(at_ns))
        self.row_ended()
        if not self.absent:
            self._clock.give_up()
            self._copies.write()
            if self._clock.lost:
                SESSION.event(
                    "device-steps-lost",
                    "rows of `steps` without one of `device_steps`: events came too late, or none "
                    "could be recorded",
                    self._clock.lost,
                )

    def _stop(self, error: Exception) -> None:
        self.absent = True
        SESSION.fault("DeviceSteps", error)

    def _is_usable(self) -> bool:
        """Return whether an event can be recorded: a device is in use and no graph is captured."""
        if self._device is None:
            import torch

            accelerator = torch.accelerator.current_accelerator()
            if accelerator is None:  # this torch was built without accelerators
                self.absent = True
                return False
            module = torch.get_device_module(accelerator)
            is_initialized = getattr(module, "is_initialized", None)
            if is_initialized is None or not is_initialized():  # the probe never initialises it
                return False
            self._device, self._kind = module, accelerator.type
            # Asked at each report: a graph's capture breaks where events are recorded or polled.
            self._is_capturing = getattr(module, "is_current_stream_capturing", lambda: False)
        return not self._is_capturing()

    def _new_event(self) -> TimedEvent:
        import torch

        event: TimedEvent = torch.Event(self._kind, enable_timing=True)
        return event


def _write(kind: RowKind, number: int, segment: Segment) -> None:
    SESSION.write(DEVICE_STEPS, SESSION.rank, number, kind, segment.wall_ns, *segment.times_ns())


def _write_copies(place: CopyPlace, count: int, spent_ns: int) -> None:
    SESSION.write(DEVICE_COPIES, SESSION.rank, *place, count, spent_ns)


DEVICE_RECORDER = DeviceStepRecorder()
