"""There are far fewer or far more processes that make batches than cores."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.model import Finding, NotEvaluated
from headrace.observe.doctor.sagemaker.recorded import Recorded, issue
from headrace.observe.whatif.tables import Columns, Ints, length

RULE = "Dataloader"
_LEAST, _MOST, _SECONDS = 0.7, 2.0, 10


def check(recorded: Recorded) -> Finding | NotEvaluated | None:
    """There are far fewer or far more processes that make batches than cores.

    Fires where the median number of processes that make batches in the same second is below 70
    % or above 200 % of the cores, given more than 10 such seconds (Dataloader: min_threshold
    70, max_threshold 200). Counted are workers, and ranks without workers, in the seconds in
    which they began a batch. It counts processes and never asks whether anything waits for
    them: Headrace's own `too-few-workers` and `oversubscribed-threads` do.
    """
    cores = recorded.cores.shape[1]
    if not cores:
        return NotEvaluated(RULE, "no core was recorded")
    if length(recorded.batches) == 0:
        return NotEvaluated(RULE, "no batch of a loader was recorded")
    at_once = _processes_a_second(recorded.batches)
    if len(at_once) <= _SECONDS:
        reason = (
            f"batches were begun in {len(at_once)} different seconds, and it begins after "
            f"{_SECONDS}"
        )
        return NotEvaluated(RULE, reason)
    median = int(np.median(at_once))
    if _LEAST * cores <= median <= _MOST * cores:
        return None
    how = "below 70%" if median < _LEAST * cores else "above 200%"
    return issue(
        RULE,
        f"{median} processes make batches at a time, for {cores} cores: {how}",
        processes=median,
        cores=cores,
        processes_a_core=median / cores,
    )


def _processes_a_second(batches: Columns) -> Ints:
    """Return for each second in which a batch was begun how many processes began one."""
    begun = np.column_stack(
        [
            batches["start_ns"] // 1_000_000_000,
            batches["rank"],
            batches["loader"],
            batches["worker"],
        ]
    )
    seconds = np.unique(begun, axis=0)[:, 0]
    counts: Ints = np.unique(seconds, return_counts=True)[1]
    return counts
