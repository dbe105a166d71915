"""Ranks' stack samples by the part of their time that lies within rows of the table `steps`.

A row of the table `stacks` holds about a second, or minutes in a long run, in which a rank may
train, evaluate and save. Of a sample that much of its time counts that is within the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from headrace.observe.doctor.stack_samples import StackSample
from headrace.observe.whatif.tables import Columns, CoveredTime, Floats

_SECOND_NS = 1_000_000_000.0
_MOSTLY, _SOME = 0.5, 0.1


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
        begins, lasted = sampled_times(sample)
        parts = (within.before(begins + lasted) - within.before(begins)) / lasted
        counted = sample.counting(sample.rows, parts)
        if counted.wall_ns > 0:
            found.append(counted)
    return tuple(found)


def is_of_rows(sample: StackSample) -> bool:
    """Return whether a sample is of the rows that it was weighed by, not of what is between them.

    Seconds may be shared. Of a stack that was seen for longer than the part of a second that is
    outside of the rows, some of the time must be within them.
    """
    spent_ns, parts = sample.rows["wall_ns"].astype(np.float64), sample.parts
    if parts is None or sample.wall_ns >= _MOSTLY * spent_ns.sum():
        return True
    _, lasted = sampled_times(sample)
    surely_ns = np.maximum(spent_ns - (1.0 - parts) * lasted, 0.0)
    return bool(surely_ns.sum() >= _SOME * spent_ns.sum())


def sampled_times(sample: StackSample) -> tuple[Floats, Floats]:
    """Return when each row of a sample began, and how long it lasted, in ns."""
    begins = sample.rows["start_ns"].astype(np.float64)
    ends = sample.rows["end_ns"].astype(np.float64)
    # An older version recorded no ends.
    return begins, np.where(ends > begins, ends - begins, _SECOND_NS)
