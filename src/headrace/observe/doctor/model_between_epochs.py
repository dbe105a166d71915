"""Evaluation without a loader: time between epochs in which a rank runs its model.

Nothing but the stack samples tells it from saving or plotting: a script may keep the batches of its
evaluation in a list, or draw them itself.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.observe.doctor.row_activity import rows_mostly_at
from headrace.observe.doctor.stack_samples import StackSample, calls_module
from headrace.observe.whatif.evaluation_waits import part_of_evaluation
from headrace.observe.whatif.tables import Columns, Flags
from headrace.observe.whatif.wall_time import WallTime


def with_evaluation_between(wall: WallTime, samples: tuple[StackSample, ...]) -> WallTime:
    """Return a run's time with what is evaluation, of the time between epochs, as evaluation.

    That is a row of kind `between`, of a second or more and without backward, if the rank is in
    calls of modules for at least half of the time in which it was sampled there.
    """
    rows = wall.between
    if not rows.count:
        return wall
    evaluates = rows_mostly_at(rows, samples, calls_module) & (rows["backward_ns"] <= 0)
    if not evaluates.any():
        return wall
    return counted_as_evaluation(wall, evaluates)


def counted_as_evaluation(wall: WallTime, which: Flags) -> WallTime:
    """Return a run's time with some rows of its time between epochs as evaluation."""
    moved = wall.between.where(which)
    moved_ns = int(moved["wall_ns"].sum())
    # The loader that was asked last has ended; what follows is not from it.
    moved = Columns({**moved, "loader": np.full(moved.count, -1)})
    between, waited_ns = part_of_evaluation(wall.between.where(~which), moved)
    moved_ns += waited_ns
    return replace(
        wall,
        evaluation=wall.evaluation.followed_by(moved),
        between=between,
        part_ns={
            **wall.part_ns,
            "evaluation": wall.part_ns["evaluation"] + moved_ns,
            "between": wall.part_ns["between"] - moved_ns,
        },
    )
