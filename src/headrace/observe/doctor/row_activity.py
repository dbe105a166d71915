"""What a rank mostly did in each row of `steps`, by its stack samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from headrace.observe.doctor.stack_samples import StackSample, end_ns_of
from headrace.observe.whatif.tables import Columns, Flags, Floats

_MOSTLY = 0.5
_SHORTEST_NS = 1_000_000_000
"""A row of `stacks` is of a second: it says nothing of a shorter time."""


def rows_mostly_at(
    rows: Columns, samples: Iterable[StackSample], is_at_it: Callable[[StackSample], bool]
) -> Flags:
    """Return which rows, of a second or more, have half of their samples at some work."""
    at_it_ns, seen_ns = _sampled_ns(rows, samples, is_at_it)
    is_mostly = (at_it_ns >= _MOSTLY * seen_ns) & (seen_ns > 0)
    return np.asarray(is_mostly & (rows["wall_ns"] >= _SHORTEST_NS))


def _sampled_ns(
    rows: Columns, samples: Iterable[StackSample], is_at_it: Callable[[StackSample], bool]
) -> tuple[Floats, Floats]:
    """Return for each row the sampled time of its rank at that work, and at anything."""
    at_it_ns, seen_ns = np.zeros(rows.count), np.zeros(rows.count)
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
        if is_at_it(sample):
            np.add.at(at_it_ns, there, wall_ns)
    return at_it_ns, seen_ns
