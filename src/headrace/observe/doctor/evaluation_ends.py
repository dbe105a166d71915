"""The ends of evaluations: what their functions do before the first batch and after the last.

A metric over all predictions is computed when the loader has ended, so its time is in rows between
epochs. The stack samples tell it from saving: the function that asked for the batches is running.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

import numpy as np

from headrace.observe.doctor.model_between_epochs import counted_as_evaluation
from headrace.observe.doctor.stack_frames import StackFrame, making_begin
from headrace.observe.doctor.stack_samples import StackSample
from headrace.observe.whatif.tables import Flags
from headrace.observe.whatif.wall_time import WallTime

_MOSTLY = 0.5
_SAVES = re.compile(
    r"^(torch/(serialization\.py|distributed/checkpoint/)|safetensors/|(shutil|pickle)\.py)"
    r"|:(\w+\.)*_*(on_)?(save|checkpoint)\w*$",
    re.IGNORECASE,
)
"""Frames that save: a function of a library may do that, too, when an evaluation has ended."""

Function = tuple[str, str]
"""A function's file and its name: `StackFrame.function_id`."""


def with_evaluation_ends(
    wall: WallTime, samples: Collection[StackSample], training: Iterable[StackSample]
) -> WallTime:
    """Return a run's time with the ends of its evaluations as evaluation, not as between epochs.

    Rows of samples span a second, and an evaluation may be shorter. So all rows after an evaluation
    are judged together, and so are all before one: they are its ends if the functions that evaluate
    are seen outside of the evaluation's own rows for at least half of their time.

    Args:
        wall: The run's time.
        samples: Of the time outside of steps.
        training: Samples of ranks in backward and the optimizer: functions seen there train.
    """
    rows, evaluation = wall.between, wall.evaluation
    if not rows.count or not evaluation.count:
        return wall
    seen_ns = _seen_ns(samples, {frame.function_id for each in training for frame in each.frames})
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


def _seen_ns(samples: Collection[StackSample], training: set[Function]) -> float:
    """Return the time in functions that evaluate, beyond the model, the loader and saving."""
    evaluating = {
        frame.function_id
        for sample in samples
        if sample.phase == "data_wait" and not sample.is_of_worker
        for frame in _asking_frames(sample, training)
    }
    return sum(
        sample.wall_ns
        for sample in samples
        if sample.phase == "other"
        and not sample.is_of_worker
        and any(frame.function_id in evaluating for frame in sample.frames)
        and not sample.passes(_SAVES)
    )


def _asking_frames(sample: StackSample, training: set[Function]) -> Iterator[StackFrame]:
    """Yield the frames from the last one that trains to the loader whose batch is waited for."""
    begin = making_begin(sample.frames) or 0
    trains = [at for at in range(begin) if sample.frames[at].function_id in training]
    if trains:  # else nothing tells the function that evaluates from the script's main one
        yield from sample.frames[trains[-1] + 1 : begin]
