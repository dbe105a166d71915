"""What the job spent its time on. Fires never: it only reports (OverallFrameworkMetrics)."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.model import Fact, Finding, NotEvaluated
from headrace.observe.doctor.sagemaker.recorded import Recorded
from headrace.observe.whatif.tables import chosen, length
from headrace.records.schema import PHASES

RULE = "OverallFrameworkMetrics"


def check(recorded: Recorded) -> Finding | NotEvaluated | None:
    """What the job spent its time on. Fires never: it only reports (OverallFrameworkMetrics).

    From the start of the recording to the end of the last step, as a mean over the ranks:
    before the first step, in training steps, in evaluation, and else; and the phases of the
    training steps.
    """
    steps, started_ns = recorded.steps, recorded.started_ns
    if length(steps) == 0 or started_ns is None:
        return NotEvaluated(RULE, "no step was recorded")
    ranks = len(np.unique(steps["rank"]))
    ends = steps["start_ns"] + steps["wall_ns"]
    whole_ns = max(float(ends.max()) - started_ns, 1.0)
    shares = {
        kind: float(steps["wall_ns"][steps["kind"] == kind].sum()) / ranks / whole_ns
        for kind in ("train", "eval")
    }
    before = max(float(steps["start_ns"].min()) - started_ns, 0.0) / whole_ns
    rest = max(1.0 - before - shares["train"] - shares["eval"], 0.0)
    evidence: dict[str, Fact] = {
        "minutes": whole_ns / 60e9,
        "before_first_step_share": before,
        "training_share": shares["train"],
        "evaluation_share": shares["eval"],
        "else_share": rest,
    }
    train = chosen(steps, steps["kind"] == "train")
    train_ns = max(float(train["wall_ns"].sum()), 1.0)
    for phase in PHASES:
        evidence[f"step_{phase}_share"] = (
            float(np.maximum(train[f"{phase}_ns"], 0).sum()) / train_ns
        )
    return Finding(
        rule=RULE,
        severity="info",
        title=f"{before:.0%} of the time passed before the first step, {shares['train']:.0%} in "
        f"training steps, {shares['eval']:.0%} in evaluation",
        seconds_lost=0.0,
        evidence=evidence,
    )
