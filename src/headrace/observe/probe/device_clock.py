"""Phases of steps by the accelerator's clock, from events in its queue.

The host only puts work into the device's queue; when the device came to it, events in that queue
tell. So with each report of the host an event is recorded, and once the device has passed it the
report goes to a second `StepClock`, with the device's time instead of the host's. Both clocks cut
their time alike, so a row of one has the number of its row of the other. Data wait by the device's
clock is what the device felt of it: none, where it still had work to do meanwhile.

Nothing waits for an event: it is polled, and polled again later. Where an event could not be
recorded, or too many have not passed, the rows that this concerns are given up and counted.

`DeviceClock` is pure: events are handed in. `DeviceStepRecorder` makes them by torch, and writes
the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from headrace.observe.probe.recording_session import SESSION
from headrace.observe.probe.segments import RowCallback, RowKind, Segment
from headrace.observe.probe.step_clock import StepClock
from headrace.records.schema import DEVICE_STEPS

MAX_PENDING_EVENTS = 1024
"""Events that may not have passed yet. A device's queue holds about so many launches, and some ten
events make a step."""

HostReport = Callable[[StepClock, int], None]
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

    def __init__(self, emit: RowCallback, new_event: Callable[[], TimedEvent | None]) -> None:
        self._emit = emit
        self._new_event = new_event
        self._clock = StepClock(self._emit_row)
        self._waiting: deque[tuple[TimedEvent | None, HostReport]] = deque()
        self._pool: list[TimedEvent] = []
        self._last: TimedEvent | None = None
        self._now_ns = 0
        self._unknown_ns = 0  # up to here the device's time has gaps
        self._has_begun = False
        self.lost = 0

    def report(self, report: HostReport, *, timed: bool = True) -> None:
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
        elif len(self._waiting) > MAX_PENDING_EVENTS:
            if timed:  # else not even asking may be allowed
                self.poll()
            if len(self._waiting) > MAX_PENDING_EVENTS:
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

    def _pass(self, event: TimedEvent | None, report: HostReport) -> None:
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

    def _emit_row(self, kind: RowKind, number: int, segment: Segment) -> None:
        if segment.start_ns <= self._unknown_ns:
            self.lost += int(self._has_begun)
        else:
            self._emit(kind, number, segment)


_PARENT_CLOCKS: list[Any] = []


class DeviceStepRecorder:
    """The device's side of a rank's steps. A fault here ends this part of recording alone.

    Attributes:
        absent: Whether there is no device to tell of, nor will be.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._clock = DeviceClock(_write, self._new_event)
        self._device: ModuleType | None = None  # torch's module for it, once it is in use
        self._kind = ""
        self.absent = False

    def forked(self) -> None:
        """Begin anew in a forked child; what the parent had under way is the parent's."""
        none = self.absent or self._device is not None  # a child cannot use its parent's device
        # Nor may it touch the parent's events, not even to destroy them.
        _PARENT_CLOCKS.append(self._clock)
        self._begin()
        self.absent = none

    def report(self, report: HostReport) -> None:
        """Tell the device's clock what the host's is told."""
        if self.absent:
            return
        try:
            self._clock.report(report, timed=self._is_usable())
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            self._stop(error)

    def row_ended(self) -> None:
        """The host has finished a row: see how far the device has come."""
        if self.absent:
            return
        try:
            if self._device is not None and not _is_capturing(self._device):
                self._clock.poll()
        except Exception as error:  # noqa: BLE001 - likewise
            self._stop(error)

    def close(self) -> None:
        """The process ends: what the device has not passed by now is not waited for."""
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
        """Whether an event can be recorded now: the script uses a device, and captures no graph."""
        import torch

        if self._device is None:
            accelerator = torch.accelerator.current_accelerator()
            if accelerator is None:  # nor will there be one: this torch was built without
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
    """Whether a graph is being captured: events would become part of it, and asking breaks it."""
    ask = getattr(device, "is_current_stream_capturing", None)
    return ask is not None and bool(ask())


def _write(kind: RowKind, number: int, segment: Segment) -> None:
    SESSION.write(DEVICE_STEPS, SESSION.rank, number, kind, segment.wall_ns, *segment.times_ns())


DEVICE_RECORDER = DeviceStepRecorder()
