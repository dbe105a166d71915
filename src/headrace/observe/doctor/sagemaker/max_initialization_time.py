"""The first step is late."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.model import Finding, NotEvaluated
from headrace.observe.doctor.sagemaker.recorded import Recorded, issue
from headrace.observe.whatif.tables import length

RULE = "MaxInitializationTime"
_MINUTES = 20.0


def check(recorded: Recorded) -> Finding | NotEvaluated | None:
    """The first step is late.

    Fires where more than 20 minutes pass between the start of the recording and the first training
    step, or have passed without one (MaxInitializationTime: threshold 20).
    """
    started_ns, steps = recorded.started_ns, recorded.steps
    if started_ns is None:
        return NotEvaluated(RULE, "nothing was recorded")
    train = steps["start_ns"][steps["kind"] == "train"] if length(steps) else np.zeros(0)
    if len(train):
        minutes = (int(train.min()) - started_ns) / 60e9
        title = f"{minutes:.0f} minutes pass before the first step"
    else:
        minutes = (int(recorded.t_ns[-1]) - started_ns) / 60e9 if len(recorded.t_ns) else 0.0
        title = f"{minutes:.0f} minutes have passed without a step"
    if minutes > _MINUTES:
        return issue(RULE, title, seconds_lost=minutes * 60, minutes=minutes)
    return None if len(train) else NotEvaluated(RULE, "no training step was recorded")
