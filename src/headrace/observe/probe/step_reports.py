"""Reports of a rank's hooks, as they are queued: what passes each on to a step clock later."""

from __future__ import annotations

from typing import Any

from headrace.observe.probe.recording_session import SESSION
from headrace.observe.probe.step_clock import StepClock
from headrace.observe.probe.step_segments import Phase
from headrace.records.schema import FETCHES

BACKWARD_BEGAN, BACKWARD_ENDED = StepClock.backward_began, StepClock.backward_ended
ITERATOR_ENDED, WITHIN_ENDED = StepClock.iterator_ended, StepClock.within_ended


def forget(clock: StepClock, _at_ns: int) -> None:
    """Pass on that what is under way will not end."""
    clock.forget()


def iterator_began(clock: StepClock, at_ns: int, loader: int, grad: bool) -> None:  # noqa: FBT001 - from a queue
    """Pass on that the rank asks for an iterator."""
    clock.iterator_began(loader, at_ns, grad=grad)


def fetch_began(clock: StepClock, at_ns: int, loader: int, grad: bool) -> None:  # noqa: FBT001 - from a queue
    """Pass on that the rank has asked a loader for a batch."""
    clock.fetch_began(loader, at_ns, grad=grad)


def fetch_ended(
    clock: StepClock,
    at_ns: int,
    samples: int,
    ended: bool,  # noqa: FBT001 - as above
    grad: bool,  # noqa: FBT001 - as above
    began_ns: int,
    *values: int,
) -> None:
    """Write the row of a request for a batch, and pass on that it has ended."""
    loader, epoch, number, ready, *reads_ns = values
    SESSION.write(
        FETCHES, SESSION.rank, loader, epoch, number, began_ns, at_ns - began_ns, ready, int(ended),
        *reads_ns,
    )  # fmt: skip
    clock.fetch_ended(at_ns, samples, ended=ended, grad=grad)


def device_fetch_ended(
    clock: StepClock,
    at_ns: int,
    samples: int,
    ended: bool,  # noqa: FBT001 - as above
    grad: bool,  # noqa: FBT001 - as above
) -> None:
    """Pass on that a request for a batch has ended."""
    clock.fetch_ended(at_ns, samples, ended=ended, grad=grad)


def optimizer_began(clock: StepClock, at_ns: int, number: int) -> None:
    """Pass on that an optimizer's step has begun."""
    clock.optimizer_began(number, at_ns)


def optimizer_ended(clock: StepClock, at_ns: int, number: int) -> None:
    """Pass on that an optimizer's step has ended."""
    clock.optimizer_ended(number, at_ns)


def within_began(clock: StepClock, at_ns: int, phase: Phase) -> None:
    """Pass on that an inner phase has begun."""
    clock.within_began(phase, at_ns)


def sync_wait(begins: bool) -> tuple[Any, ...]:  # noqa: FBT001 - a callback's two calls
    """Return the report that a wait for other ranks begins, or has ended."""
    return (within_began, "sync") if begins else (WITHIN_ENDED,)


def collective_began(clock: StepClock, at_ns: int, brings_data: bool) -> None:  # noqa: FBT001 - as above
    """Pass on that a collective of the script's own has begun."""
    clock.collective_began(at_ns, brings_data=brings_data)


def collective(begins: bool, brings_data: bool) -> tuple[Any, ...]:  # noqa: FBT001 - a callback's
    """Return the report that a collective of the script's own begins, or has ended."""
    return (collective_began, brings_data) if begins else (StepClock.collective_ended,)
