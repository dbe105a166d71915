"""The ends of evaluations: what their functions do before the first batch and after the last.

A metric over all predictions is computed when the loader has ended, so its time is in rows between
epochs. The stack samples tell it from saving: the function that asked for the batches is running.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator

import numpy as np

from headrace.observe.doctor.model_between_epochs import counted_as_evaluation
from headrace.observe.doctor.stack_frames import StackFrame, making_begin
from headrace.observe.doctor.stack_samples import StackSample, is_module_call
from headrace.observe.doctor.step_frames import TRAINING_PHASES, frames_in_steps
from headrace.observe.whatif.tables import Flags
from headrace.observe.whatif.wall_time import WallTime

_MOSTLY = 0.5
_ONLY_TRAINING = ("backward", "optimizer")
"""Phases that no evaluation has."""
_SAVES = re.compile(
    r"^(torch/(serialization\.py|distributed/checkpoint/)|safetensors/|(shutil|pickle)\.py)"
    r"|:(\w+\.)*_*(on_)?(save|checkpoint)\w*$",
    re.IGNORECASE,
)
"""Frames that save: a function of a library may do that, too, when an evaluation has ended."""

Function = tuple[str, str]
"""A function's file and its name: `StackFrame.function_id`."""


def with_evaluation_ends(
    wall: WallTime, samples: Collection[StackSample], in_steps: Collection[StackSample]
) -> WallTime:
    """Return a run's time with the ends of its evaluations as evaluation, not as between epochs.

    Rows of samples span a second, and an evaluation may be shorter. So all rows after an evaluation
    are judged together, and so are all before one: they are its ends if the functions that evaluate
    are seen outside of the evaluation's own rows for at least half of their time.

    Args:
        wall: The run's time.
        samples: Of seconds with time outside of steps.
        in_steps: Of ranks, with the part of each row's time that is in steps.
    """
    rows, evaluation = wall.between, wall.evaluation
    if not rows.count or not evaluation.count:
        return wall
    seen_ns = _seen_ns(samples, _evaluating(samples, in_steps))
    seen_ns -= float(evaluation["other_ns"].sum())
    ends: Flags = np.zeros(rows.count, dtype=np.bool_)
    for side in sorted(_sides(wall), key=lambda side: -rows["wall_ns"][side].sum()):
        taken_ns = float(rows["wall_ns"][side].sum())
        if 0 < _MOSTLY * taken_ns <= seen_ns:
            ends |= side
            seen_ns -= taken_ns
    return counted_as_evaluation(wall, ends) if ends.any() else wall


def _sides(wall: WallTime) -> tuple[Flags, Flags]:
    """Return which rows between epochs come at once after an evaluation's, and which before."""
    rows, evaluation = wall.between, wall.evaluation
    begins = set(zip(evaluation["rank"], evaluation["start_ns"], strict=True))
    ended_ns = evaluation["start_ns"] + evaluation["wall_ns"]
    ends = set(zip(evaluation["rank"], ended_ns, strict=True))
    stops = zip(rows["rank"], rows["start_ns"] + rows["wall_ns"], strict=True)
    after = np.array([at in ends for at in zip(rows["rank"], rows["start_ns"], strict=True)])
    before = np.array([at in begins for at in stops])
    return after, before & ~after


def _seen_ns(samples: Collection[StackSample], evaluating: set[Function]) -> float:
    """Return the time in functions that evaluate, beyond the model, the loader and saving."""
    return sum(
        sample.wall_ns
        for sample in samples
        if sample.phase == "other"
        and not sample.is_of_worker
        and any(frame.function_id in evaluating for frame in sample.frames)
        and not sample.passes(_SAVES)
    )


def _evaluating(
    samples: Collection[StackSample], in_steps: Collection[StackSample]
) -> set[Function]:
    """Return the functions that evaluate: they wait for its batches, or call its model.

    A quick loader is seldom seen to be waited for, and a quick backward is seldom seen at all.
    """
    models = _functions(frames_in_steps(in_steps, TRAINING_PHASES))
    training = _functions(
        frame for each in in_steps if each.phase in _ONLY_TRAINING for frame in each.frames
    )
    waits, calls = (
        [each for each in samples if each.phase == phase and not each.is_of_worker]
        for phase in ("data_wait", "forward")
    )
    asking = (frame for each in waits for frame in _asking_frames(each, training or models))
    calling = (frame for each in calls for frame in _calling_frames(each, training | models))
    return _functions(itertools.chain(asking, calling))


def _functions(frames: Iterable[StackFrame]) -> set[Function]:
    return {frame.function_id for frame in frames}


def _asking_frames(sample: StackSample, training: set[Function]) -> Iterator[StackFrame]:
    """Yield the frames from the last one that trains to the loader whose batch is waited for."""
    begin = making_begin(sample.frames) or 0
    trains = [at for at in range(begin) if sample.frames[at].function_id in training]
    if trains:  # else nothing tells the function that evaluates from the script's main one
        yield from sample.frames[trains[-1] + 1 : begin]


def _calling_frames(sample: StackSample, training: set[Function]) -> Iterator[StackFrame]:
    """Yield the frames between the outermost ones that train and the model that is called."""
    frames = list(itertools.dropwhile(lambda each: each.function_id in training, sample.frames))
    if len(frames) < len(sample.frames):
        yield from itertools.takewhile(
            lambda each: each.function_id not in training and not is_module_call(each), frames
        )
