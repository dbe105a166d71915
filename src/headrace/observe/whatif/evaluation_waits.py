"""Time between epochs in which a rank waits for another one that evaluates, as in a barrier."""

from __future__ import annotations

import numpy as np

from headrace.observe.whatif.tables import Columns, Ints, covered_before


def part_of_evaluation(between: Columns, evaluation: Columns) -> tuple[Columns, int]:
    """Return rows of time between epochs without what other ranks evaluate in, and that time.

    All ranks meet in the next step at the latest. Until then a rank waits for one that evaluates,
    and what it does itself meanwhile costs nothing.

    Args:
        between: Rows of `steps` that are between epochs.
        evaluation: Rows of `steps` that are of evaluation.

    Returns:
        The rows, shorter by what was taken from their beginnings, without those that are nothing
        else; and what was taken in all, in ns.
    """
    if not (between.count and evaluation.count):
        return between, 0
    meanwhile = _covered_by_others(between, evaluation)
    if not meanwhile.any():
        return between, 0
    shorter = {name: between[name] for name in between}
    shorter["start_ns"] = shorter["start_ns"] + meanwhile
    shorter["wall_ns"] = shorter["wall_ns"] - meanwhile
    return Columns(shorter).where(shorter["wall_ns"] > 0), int(meanwhile.sum())


def _covered_by_others(rows: Columns, evaluation: Columns) -> Ints:
    """Return for each row how much of it other ranks evaluate in, in ns."""
    begins = rows["start_ns"].astype(np.float64)
    ends = begins + rows["wall_ns"]
    covered = np.zeros(rows.count, dtype=np.int64)
    for rank in map(int, np.unique(rows["rank"])):
        others = evaluation.where(evaluation["rank"] != rank)
        starts = others["start_ns"].astype(np.float64)
        mine = rows["rank"] == rank
        span = (starts, starts + others["wall_ns"])
        inside = covered_before(*span, ends[mine]) - covered_before(*span, begins[mine])
        covered[mine] = inside.astype(np.int64)
    return np.asarray(np.minimum(covered, rows["wall_ns"]))
