"""Evaluation without a loader: time between epochs in which a rank runs its model.

Nothing but the stack samples tells it from saving or plotting: a script may keep the batches of its
evaluation in a list, or draw them itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from headrace.observe.doctor.stack_samples import StackSample, calls_module, end_ns_of
from headrace.observe.whatif.evaluation_waits import part_of_evaluation
from headrace.observe.whatif.tables import Columns, Flags, Floats
from headrace.observe.whatif.wall_time import WallTime

_MOSTLY = 0.5
_SHORTEST_NS = 1_000_000_000
"""A row of `stacks` is of a second: it says nothing of a shorter time."""


def with_evaluation_between(wall: WallTime, samples: Iterable[StackSample]) -> WallTime:
    """Return a run's time with what is evaluation, of the time between epochs, as evaluation.

    That is a row of kind `between`, of a second or more and without backward, if the rank is in
    calls of modules for at least half of the time in which it was sampled there.
    """
    rows = wall.between
    if not rows.count:
        return wall
    model_ns, seen_ns = _sampled_ns(rows, samples)
    evaluates = (model_ns >= _MOSTLY * seen_ns) & (seen_ns > 0)
    evaluates &= (rows["wall_ns"] >= _SHORTEST_NS) & (rows["backward_ns"] <= 0)
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


def _sampled_ns(rows: Columns, samples: Iterable[StackSample]) -> tuple[Floats, Floats]:
    """Return for each row the sampled time of its rank in the model, and in anything."""
    model_ns, seen_ns = np.zeros(rows.count), np.zeros(rows.count)
    order = np.lexsort((rows["start_ns"], rows["rank"]))
    for sample in samples:
        mine = order[rows["rank"][order] == sample.rank]
        if sample.rows["worker"][0] >= 0 or not len(mine):
            continue
        begins = rows["start_ns"][mine]
        middle = (sample.rows["start_ns"] + end_ns_of(sample.rows)) // 2
        place = np.searchsorted(begins, middle, side="right") - 1
        inside = (place >= 0) & (middle < (begins + rows["wall_ns"][mine])[place])
        there, wall_ns = mine[place[inside]], sample.rows["wall_ns"][inside]
        np.add.at(seen_ns, there, wall_ns)
        if calls_module(sample):
            np.add.at(model_ns, there, wall_ns)
    return model_ns, seen_ns
