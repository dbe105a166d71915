"""Writes the phases of steps by the clock of the accelerator that this process uses, if any."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from headrace.observe.probe.device_clock import DeviceClock, Report, TimedEvent
from headrace.observe.probe.segments import RowKind, Segment
from headrace.observe.probe.session import SESSION
from headrace.records.schema import DEVICE_STEPS

_LEFT_TO_PARENT: list[Any] = []


class DeviceSteps:
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
        _LEFT_TO_PARENT.append(self._clock)
        self._begin()
        self.absent = none

    def report(self, report: Report) -> None:
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


DEVICE = DeviceSteps()
