"""Records a rank's steps by the device's clock: makes events with torch and writes the rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic_ns
from types import ModuleType
from typing import Any

from headrace.observe.probe.device_clock import CopySums, DeviceClock, HostReport, TimedEvent
from headrace.observe.probe.recording_session import SESSION
from headrace.observe.probe.step_clock import CopyPlace, StepClock
from headrace.observe.probe.step_segments import RowKind, Segment
from headrace.records.schema import DEVICE_COPIES, DEVICE_STEPS

_PARENT_CLOCKS: list[Any] = []
_LAST_WAIT_S = 10.0  # at the end there is no later time


class DeviceStepRecorder:
    """The device's side of a rank's steps. A fault here ends this part of recording alone."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._copies = CopySums(_write_copies)
        self._clock = DeviceClock(
            _write,
            self._new_event,
            threading.Lock,
            self._copies.add,
            lambda _, error: self._stop(error),
        )
        self._module: ModuleType | None = None  # torch's module for the device there may be
        self._in_use = False  # the script has initialised it
        self._stream: Any = None  # in which the script trains; None: not known yet
        self._kind = ""
        self._is_capturing: Callable[[], bool] = lambda: False
        self.absent = False

    def forked(self) -> None:
        """Start again in a forked child; unfinished steps belong to the parent."""
        absent = self.absent or self._in_use  # a child cannot use its parent's device
        # Keep the parent's events alive: the child must not even destroy them.
        _PARENT_CLOCKS.append(self._clock)
        self._begin()
        self.absent = absent

    def trains_here(self) -> None:
        """Note that the script trains in the stream that is current now."""
        if self.absent or not self._in_use:
            return
        import torch

        try:
            self._stream = torch.accelerator.current_stream()  # a fifth of torch.cuda's time
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            self._stop(error)

    def report(self, report: HostReport, *values: Any) -> None:
        """Pass a report of the host to the device's clock."""
        if self.absent:
            return
        try:
            # A graph's capture breaks where events are recorded or polled.
            timed = not self._is_capturing() if self._in_use else self._is_found()
            self._clock.report(report, *values, timed=timed, stream=self._stream)
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            self._stop(error)

    def row_ended(self) -> None:
        """Poll the device's events: the host has finished a row."""
        if self.absent or not self._in_use:
            return
        try:
            if not self._is_capturing():
                self._clock.poll()
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            self._stop(error)

    def settle(self, *, wait_s: float = 0.0) -> None:
        """Make rows of what the device is known to have passed; in any thread."""
        if not self.absent:
            timed = self._clock.timed
            # Passed with the reports, whose copies it sums: in one thread at a time.
            timed.waiting.append((self._write_copies, monotonic_ns()))
            timed.settle(wait_s=wait_s)

    def close(self) -> None:
        """Close the device's clock at the process's end; events not passed by now are dropped."""
        self.report(StepClock.close)
        self.row_ended()
        if self.absent:
            return
        self._clock.give_up()
        self.settle(wait_s=_LAST_WAIT_S)
        self._copies.write()
        if self._clock.lost:
            SESSION.event(
                "device-steps-lost",
                "rows of `steps` without one of `device_steps`: events came too late, or none "
                "could be recorded",
                self._clock.lost,
            )

    def _write_copies(self, _clock: StepClock, at_ns: int) -> None:
        self._copies.write(at_ns)

    def _stop(self, error: Exception) -> None:
        self.absent = True
        SESSION.fault("DeviceSteps", error)

    def _is_found(self) -> bool:
        """Return whether a device is in use now: the script has initialised it, as we never do."""
        if self._module is None:
            import torch

            accelerator = torch.accelerator.current_accelerator()
            if accelerator is None:  # this torch was built without accelerators
                self.absent = True
                return False
            self._module, self._kind = torch.get_device_module(accelerator), accelerator.type
        is_initialized = getattr(self._module, "is_initialized", None)
        if is_initialized is None or not is_initialized():
            return False
        self._in_use = True
        self._is_capturing = getattr(
            self._module, "is_current_stream_capturing", self._is_capturing
        )
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
