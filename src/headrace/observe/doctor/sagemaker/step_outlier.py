"""Some steps take far longer than the others."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.model import Finding, NotEvaluated
from headrace.observe.doctor.sagemaker.recorded import Recorded, issue
from headrace.observe.whatif.tables import length

RULE = "StepOutlier"
_DEVIATIONS, _OUTLIERS, _FEWEST = 3.0, 10, 100
_KINDS = {"train": "training", "eval": "evaluation"}


def check(recorded: Recorded) -> Finding | NotEvaluated | None:
    """Some steps take far longer than the others.

    Fires where more than 10 steps of a kind, training or evaluation, are more than 3 standard
    deviations above the mean of their kind, over all ranks, given more than 100 of it
    (StepOutlier: stddev 3, n_outliers 10, mode None). The mean and the deviation hold the
    outliers too, so many of them hide each other: Headrace's own `step-outliers` goes by the
    median, and names the line.
    """
    steps = recorded.steps
    most = 0
    for kind, name in _KINDS.items():
        of_kind = steps["kind"] == kind if length(steps) else np.zeros(0, dtype=np.bool_)
        most = max(most, int(of_kind.sum()))
        if of_kind.sum() <= _FEWEST:
            continue
        wall = steps["wall_ns"][of_kind].astype(np.float64)
        limit = float(wall.mean() + _DEVIATIONS * wall.std())
        outliers = wall[wall > limit]
        if len(outliers) > _OUTLIERS:
            ranks = len(np.unique(steps["rank"][of_kind]))
            return issue(
                RULE,
                f"{len(outliers):,} of {len(wall):,} {name} steps take longer than "
                f"{limit / 1e6:,.0f} ms, the mean and three standard deviations",
                seconds_lost=float((outliers - wall.mean()).sum()) / ranks / 1e9,
                outliers=len(outliers),
                steps=len(wall),
                mean_ms=float(wall.mean()) / 1e6,
                deviation_ms=float(wall.std()) / 1e6,
                outlier_ms=float(outliers.mean()) / 1e6,
            )
    if most <= _FEWEST:
        return NotEvaluated(RULE, f"{most} steps were recorded, and it begins after {_FEWEST}")
    return None
