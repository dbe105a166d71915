"""Phases of steps by the accelerator's clock, from events in its queue.

The host only puts work into the device's queue; events in that queue tell when the device reached
it. So an event is recorded with each report of the host, and once the device has passed the event,
the report goes to a second `StepClock` with the device's time instead of the host's. Both clocks
cut time in the same way, so their rows have the same numbers. Data wait by the device's clock is
the time for which the device was idle: zero where it still had work queued.

Events are polled, never waited for. Where an event could not be recorded, or too many have not
passed, the rows concerned are dropped and counted.

`DeviceClock` is pure: events are passed in. `DeviceStepRecorder` makes them with torch and writes
the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from headrace.observe.probe.recording_session import SESSION
from headrace.observe.probe.step_clock import RowCallback, RowKind, Segment, StepClock
from headrace.records.schema import DEVICE_STEPS

MAX_PENDING_EVENTS = 1024
"""Most events that have not passed yet. A device's queue holds about 1,000 launches, and a step has
about ten events."""

HostReport = Callable[[StepClock, int], None]
"""A report of the host: called with a clock and the time by that clock."""


class TimedEvent(Protocol):
    """An event in the device's queue, such as `torch.Event(enable_timing=True)`."""

    def record(self) -> Any:
        """Put the event at the queue's end; an event may be recorded again."""

    def query(self) -> bool:
        """Return whether the device has passed the event, without waiting."""

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds from this event to `end`; both have passed."""


class DeviceClock:
    """Passes the host's reports to a step clock that runs on the device's time.

    Rows whose time is known go to `emit`; `new_event` returns None if none can be recorded now.
    """

    def __init__(self, emit: RowCallback, new_event: Callable[[], TimedEvent | None]) -> None:
        self._emit = emit
        self._new_event = new_event
        self._clock = StepClock(self._emit_row)
        self._waiting: deque[tuple[TimedEvent | None, HostReport]] = deque()
        self._pool: list[TimedEvent] = []
        self._last: TimedEvent | None = None
        self._now_ns = 0
        self._unknown_ns = 0  # until then the device's time has gaps
        self._has_begun = False
        self.lost = 0

    def report(self, report: HostReport, *, timed: bool = True) -> None:
        """Add a report at this place of the device's queue; `timed`: events can be recorded."""
        event = self._recorded() if timed else None
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

    def _recorded(self) -> TimedEvent | None:
        event = self._pool.pop() if self._pool else self._new_event()
        if event is not None:
            event.record()
        return event

    def _pass(self, event: TimedEvent | None, report: HostReport) -> None:
        if event is None:
            self._unknown_ns = self._now_ns
        elif self._last is None:
            self._now_ns += 1  # so that a row that begins here starts after the gap
        else:  # truncated times would add up to more than the whole
            self._now_ns += round(self._last.elapsed_time(event) * 1e6)
        if self._last is not None:
            self._pool.append(self._last)
        self._last = event
        report(self._clock, self._now_ns)

    def _emit_row(self, kind: RowKind, number: int, segment: Segment) -> None:
        if segment.start_ns <= self._unknown_ns:
            self.lost += int(self._has_begun)
        else:
            self._emit(kind, number, segment)


_PARENT_CLOCKS: list[Any] = []


class DeviceStepRecorder:
    """The device's side of a rank's steps. A fault here ends this part of recording alone."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._clock = DeviceClock(_write, self._new_event)
        self._device: ModuleType | None = None  # torch's module for it, once in use
        self._kind = ""
        self.absent = False

    def forked(self) -> None:
        """Start again in a forked child; unfinished steps belong to the parent."""
        absent = self.absent or self._device is not None  # a child cannot use its parent's device
        # Keep the parent's events alive: the child must not even destroy them.
        _PARENT_CLOCKS.append(self._clock)
        self._begin()
        self.absent = absent

    def report(self, report: HostReport) -> None:
        """Pass a report of the host to the device's clock."""
        if self.absent:
            return
        try:
            self._clock.report(report, timed=self._is_usable())
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            self._stop(error)

    def row_ended(self) -> None:
        """Poll the device's events: the host has finished a row."""
        if self.absent:
            return
        try:
            if self._device is not None and not _is_capturing(self._device):
                self._clock.poll()
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            self._stop(error)

    def close(self) -> None:
        """Close the device's clock at the process's end; events not passed by now are dropped."""
        self.report(lambda clock, at_ns: clock.close(at_ns))
        self.row_ended()
        if not self.absent:
            self._clock.give_up()
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
        import torch

        if self._device is None:
            accelerator = torch.accelerator.current_accelerator()
            if accelerator is None:  # this torch was built without accelerators
                self.absent = True
                return False
            module = torch.get_device_module(accelerator)
            is_initialized = getattr(module, "is_initialized", None)
            if is_initialized is None or not is_initialized():  # the probe never initialises it
                return False
            self._device, self._kind = module, accelerator.type
        return not _is_capturing(self._device)

    def _new_event(self) -> TimedEvent:
        import torch

        event: TimedEvent = torch.Event(self._kind, enable_timing=True)
        return event


def _is_capturing(device: ModuleType) -> bool:
    """Return whether a graph is being captured: recording or polling events would break it."""
    query = getattr(device, "is_current_stream_capturing", None)
    return query is not None and bool(query())


def _write(kind: RowKind, number: int, segment: Segment) -> None:
    SESSION.write(DEVICE_STEPS, SESSION.rank, number, kind, segment.wall_ns, *segment.times_ns())


DEVICE_RECORDER = DeviceStepRecorder()
