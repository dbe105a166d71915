"""Ranks' stack samples by the part of their time that lies within rows of the table `steps`.

A row of the table `stacks` holds about a second, or minutes in a long run, in which a rank may
train, evaluate and save. Of a sample that much of its time counts that is within the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from headrace.observe.doctor.stack_samples import StackSample
from headrace.observe.whatif.tables import Columns, CoveredTime

_SECOND_NS = 1_000_000_000


def samples_in_rows(
    samples: Iterable[StackSample], rows: Columns, phases: Collection[str] | None = None
) -> tuple[StackSample, ...]:
    """Return ranks' samples, each with the part of its time within rows of `steps`, if any.

    Args:
        samples: The samples; those of workers are left out.
        rows: Of `steps`.
        phases: In which of them the samples were; None: any.
    """
    covered: dict[int, CoveredTime] = {}
    for rank in map(int, np.unique(rows["rank"])):
        mine = rows.having(rank=rank)
        begins = mine["start_ns"].astype(np.float64)
        covered[rank] = CoveredTime(begins, begins + mine["wall_ns"])
    found = []
    for sample in samples:
        is_wanted = phases is None or sample.phase in phases
        if not is_wanted or sample.rank not in covered or sample.is_of_worker:
            continue
        within = covered[sample.rank]
        begins = sample.rows["start_ns"].astype(np.float64)
        ends = sample.rows["end_ns"].astype(np.float64)
        ends = np.where(ends > begins, ends, begins + _SECOND_NS)  # an older version's have none
        parts = (within.before(ends) - within.before(begins)) / (ends - begins)
        counted = sample.counting(sample.rows, parts)
        if counted.wall_ns > 0:
            found.append(counted)
    return tuple(found)
