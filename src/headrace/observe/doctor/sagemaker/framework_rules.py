"""SageMaker Debugger's rules about framework metrics: steps, loaders, initialisation time."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.findings import Fact, Finding
from headrace.observe.doctor.sagemaker.debugger_metrics import (
    DebuggerMetrics,
    debugger_finding,
    debugger_report,
    debugger_rule,
)
from headrace.observe.whatif.tables import Columns, Ints, row_count, select_rows
from headrace.records.schema import PHASES

_FEWEST_PROCESSES, _MOST_PROCESSES, _FEWEST_SECONDS = 0.7, 2.0, 10


@debugger_rule("Dataloader")
def check_dataloader(recorded: DebuggerMetrics) -> Finding | str | None:
    """There are far fewer or far more processes that make batches than cores.

    Fires where the median number of processes that make batches in the same second is below 70
    % or above 200 % of the cores, given more than 10 such seconds (Dataloader: min_threshold
    70, max_threshold 200). Counted are workers, and ranks without workers, in the seconds in
    which they began a batch. It counts processes and never asks whether anything waits for
    them: Headrace's own `too-few-workers` and `oversubscribed-threads` do.
    """
    cores = recorded.cores.shape[1]
    if not cores:
        return "no core was recorded"
    if row_count(recorded.batches) == 0:
        return "no batch of a loader was recorded"
    at_once = _processes_a_second(recorded.batches)
    if len(at_once) <= _FEWEST_SECONDS:
        return (
            f"batches were begun in {len(at_once)} different seconds, and it begins after "
            f"{_FEWEST_SECONDS}"
        )
    median = int(np.median(at_once))
    if _FEWEST_PROCESSES * cores <= median <= _MOST_PROCESSES * cores:
        return None
    how = "below 70%" if median < _FEWEST_PROCESSES * cores else "above 200%"
    return debugger_finding(
        f"{median} processes make batches at a time, for {cores} cores: {how}",
        processes=median,
        cores=cores,
        processes_a_core=median / cores,
    )


def _processes_a_second(batches: Columns) -> Ints:
    """Return for each second in which a batch began the number of processes that began one."""
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


_INITIALIZATION_MINUTES = 20.0


@debugger_rule("MaxInitializationTime")
def check_max_initialization_time(recorded: DebuggerMetrics) -> Finding | str | None:
    """The first step is late.

    Fires where more than 20 minutes pass between the start of the recording and the first training
    step, or have passed without one (MaxInitializationTime: threshold 20).
    """
    started_ns, steps = recorded.started_ns, recorded.steps
    if started_ns is None:
        return "nothing was recorded"
    train = steps["start_ns"][steps["kind"] == "train"] if row_count(steps) else np.zeros(0)
    if len(train):
        minutes = (int(train.min()) - started_ns) / 60e9
        title = f"{minutes:.0f} minutes pass before the first step"
    else:
        minutes = (int(recorded.t_ns[-1]) - started_ns) / 60e9 if len(recorded.t_ns) else 0.0
        title = f"{minutes:.0f} minutes have passed without a step"
    if minutes > _INITIALIZATION_MINUTES:
        return debugger_finding(title, seconds_lost=minutes * 60, minutes=minutes)
    return None if len(train) else "no training step was recorded"


_DEVIATIONS, _FEWEST_OUTLIERS, _FEWEST_STEPS = 3.0, 10, 100
_KINDS = {"train": "training", "eval": "evaluation"}


@debugger_rule("StepOutlier")
def check_step_outlier(recorded: DebuggerMetrics) -> Finding | str | None:
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
        of_kind = steps["kind"] == kind if row_count(steps) else np.zeros(0, dtype=np.bool_)
        most = max(most, int(of_kind.sum()))
        if of_kind.sum() <= _FEWEST_STEPS:
            continue
        wall = steps["wall_ns"][of_kind].astype(np.float64)
        limit = float(wall.mean() + _DEVIATIONS * wall.std())
        outliers = wall[wall > limit]
        if len(outliers) > _FEWEST_OUTLIERS:
            ranks = len(np.unique(steps["rank"][of_kind]))
            return debugger_finding(
                f"{len(outliers):,} of {len(wall):,} {name} steps take longer than "
                f"{limit / 1e6:,.0f} ms, the mean and three standard deviations",
                seconds_lost=float((outliers - wall.mean()).sum()) / ranks / 1e9,
                outliers=len(outliers),
                steps=len(wall),
                mean_ms=float(wall.mean()) / 1e6,
                deviation_ms=float(wall.std()) / 1e6,
                outlier_ms=float(outliers.mean()) / 1e6,
            )
    if most <= _FEWEST_STEPS:
        return f"{most} steps were recorded, and it begins after {_FEWEST_STEPS}"
    return None


@debugger_rule("OverallFrameworkMetrics")
def check_overall_framework_metrics(recorded: DebuggerMetrics) -> Finding | str | None:
    """What the job spent its time on. Fires never: it only reports (OverallFrameworkMetrics).

    From the start of the recording to the end of the last step, as a mean over the ranks:
    before the first step, in training steps, in evaluation, and else; and the phases of the
    training steps.
    """
    steps, started_ns = recorded.steps, recorded.started_ns
    if row_count(steps) == 0 or started_ns is None:
        return "no step was recorded"
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
    train = select_rows(steps, steps["kind"] == "train")
    train_ns = max(float(train["wall_ns"].sum()), 1.0)
    for phase in PHASES:
        evidence[f"step_{phase}_share"] = (
            float(np.maximum(train[f"{phase}_ns"], 0).sum()) / train_ns
        )
    return debugger_report(
        f"{before:.0%} of the time passed before the first step, {shares['train']:.0%} in "
        f"training steps, {shares['eval']:.0%} in evaluation",
        evidence,
    )
