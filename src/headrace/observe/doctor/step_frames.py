"""Which lines of code training steps run, where a second of stack samples holds steps and others.

What is called in steps is seen in each second for no longer than steps take of it, and anything
else for no longer than the rest. So that of some seconds a call can be only one of the two, which
leaves less room to the others. What calls both, as a script's `main` does, is seen for longer than
either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from headrace.observe.doctor.samples_in_rows import is_of_rows, sampled_times
from headrace.observe.doctor.stack_frames import StackFrame
from headrace.observe.doctor.stack_samples import StackSample

TRAINING_PHASES = ("forward", "backward", "optimizer")
"""The phases in which a step's own code runs, beside making its data."""
_FITS = 0.85
"""The share of a call's time for which there must be room: its time is sampled."""
_PASSES = 3
"""How often calls are judged, each time with the room that those which are known leave."""

_Second = tuple[int, float]
"""A rank, and when a row of its samples began."""


@dataclass(slots=True)
class _Call:
    """A frame with all that calls it, and the time for which it was seen in each second."""

    seen_ns: defaultdict[_Second, float] = field(default_factory=lambda: defaultdict(float))
    called: dict[StackFrame, _Call] = field(default_factory=dict)
    is_of_steps: bool | None = None  # None: it calls both, or is not known


@dataclass(slots=True)
class _Room:
    """What steps take of each second, and what the rest does, without the calls that are known."""

    of_steps_ns: dict[_Second, float] = field(default_factory=dict)
    of_rest_ns: dict[_Second, float] = field(default_factory=dict)

    def judge(self, call: _Call) -> None:
        """Find out whether a call is of steps, or else whether those that it calls are."""
        if call.is_of_steps is not None:
            return
        fits_steps, fits_rest = (self._fits(call, at) for at in (self.of_steps_ns, self.of_rest_ns))
        if fits_steps == fits_rest:
            for inner in call.called.values():
                self.judge(inner)
            return
        call.is_of_steps = fits_steps
        room_ns = self.of_steps_ns if fits_steps else self.of_rest_ns
        for second, seen_ns in call.seen_ns.items():
            room_ns[second] = max(room_ns[second] - seen_ns, 0.0)

    def _fits(self, call: _Call, room_ns: dict[_Second, float]) -> bool:
        seen = call.seen_ns.items()
        fitting_ns = sum(min(seen_ns, room_ns[second]) for second, seen_ns in seen)
        return fitting_ns >= _FITS * sum(call.seen_ns.values())


def frames_in_steps(samples: Collection[StackSample], phases: Collection[str]) -> set[StackFrame]:
    """Return the frames of code that training steps run.

    Args:
        samples: Of ranks, with the part of each row's time that is in steps.
        phases: Of the steps that are looked at; the others show what is of steps, too.
    """
    root, room = _Call(), _Room()
    for sample in samples:
        _add(sample, root, room)
    for _ in range(_PASSES):
        for call in root.called.values():
            room.judge(call)
    return {
        frame
        for sample in samples
        if sample.phase in phases and _is_of_steps(sample, root)
        for frame in sample.frames
    }


def _add(sample: StackSample, root: _Call, room: _Room) -> None:
    if sample.parts is None:
        return
    calls = tuple(_calls(sample.frames, root))
    spent_ns = sample.rows["wall_ns"].tolist()
    columns = (*(each.tolist() for each in sampled_times(sample)), sample.parts.tolist(), spent_ns)
    for begin, length, part, spent in zip(*columns, strict=True):
        second = sample.rank, begin
        room.of_steps_ns[second], room.of_rest_ns[second] = part * length, (1.0 - part) * length
        for call in calls:
            call.seen_ns[second] += spent


def _calls(frames: Iterable[StackFrame], root: _Call) -> Iterator[_Call]:
    call = root
    for frame in frames:
        call = call.called.setdefault(frame, _Call())
        yield call


def _is_of_steps(sample: StackSample, root: _Call) -> bool:
    """Return whether a sample is of steps, by the outermost of its calls of which it is known."""
    known = [call.is_of_steps for call in _calls(sample.frames, root)]
    found = next((each for each in known if each is not None), None)
    return is_of_rows(sample) if found is None else found
