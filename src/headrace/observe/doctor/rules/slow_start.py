"""The rule slow-start: it takes long until training begins."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.findings import Finding, Remedy
from headrace.observe.doctor.rule import rule

_START_S, _FIRST_BATCH_S = 60.0, 20.0
_SHORT_RUN_FIRST_BATCH_S, _SHORT_RUN_SHARE = 5.0, 0.1
_LITTLE = 0.01


@rule
def check_slow_start(evidence: Evidence) -> Finding | None:
    """It takes long until training begins.

    Fires where more than 60 s pass from a rank's start until its steps have their steady
    length, without the time of the steps before at that length, or more than 20 s in waiting
    for its first batch: imports and the start of workers take less. In a short run, such as a
    trial of a sweep, less counts: 5 s for the first batch if that is a tenth of the run's time.
    In a run of which it is less than 1 % its severity is "info".
    """
    processes, steps = evidence.processes, evidence.steps
    span = steps.span_ns
    if not evidence.enough or span is None or not len(processes.get("role", ())):
        return None
    ranks = processes["started_ns"][processes["role"] == "rank"]
    if not len(ranks):
        return None
    before_ns = (steps.recorded - len(steps)) / len(steps.ranks) * float(np.median(steps.wall_ns))
    start_s = max((span[0] - int(ranks.min()) - before_ns) / 1e9, 0.0)
    first_s, all_s = _first_batch_s(evidence), (span[1] - int(ranks.min())) / 1e9
    least_first_s = min(_FIRST_BATCH_S, max(_SHORT_RUN_FIRST_BATCH_S, _SHORT_RUN_SHARE * all_s))
    if start_s < _START_S and first_s < least_first_s:
        return None
    seconds = max(start_s, first_s)
    what = "until the first batch is there" if first_s >= start_s / 2 else "before the first step"
    return evidence.finding(
        f"{seconds:.0f} s pass {what}",
        seconds,
        {"seconds_to_steady_steps": start_s, "seconds_to_first_batch": first_s},
        remedies=(_SOONER_FIRST_BATCH if first_s >= start_s / 2 else _LESS_BEFORE_TRAINING,),
        # Time before training is paid once, so it is never more than a warning.
        severity="warning" if seconds >= _LITTLE * all_s else "info",
    )


def _first_batch_s(evidence: Evidence) -> float:
    """Return the wait for the first training batch, in seconds; 0 if not recorded."""
    fetches, loader = evidence.fetches, evidence.loader
    if loader is None or not len(fetches.get("batch", ())):
        return 0.0
    first = (fetches["batch"] == 0) & (fetches["epoch"] == 0) & (fetches["loader"] == loader.number)
    return float(fetches["wait_ns"][first].max(initial=0)) / 1e9


# Their effect depends on the length of the run, so nothing is predicted.
_SOONER_FIRST_BATCH = Remedy(
    name="sooner-first-batch",
    change="a first batch that comes sooner",
    how="Pack the data into shards, whose index is read instead of listing files; open files and "
    "models in worker_init_fn alone; begin with fewer workers, or fork them before the process is "
    "large.",
)
_LESS_BEFORE_TRAINING = Remedy(
    name="less-before-training",
    change="less to do before training",
    how="Keep what is computed before the first step, such as lists of files, statistics, compiled "
    "models, in files; download weights once a host; import what training does not need later.",
)
