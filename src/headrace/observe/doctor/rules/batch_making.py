"""Rules about the time of making a batch: computing, collating, locks."""

from __future__ import annotations

import re
from itertools import pairwise

from headrace.observe.doctor.cpu_remedies import auxiliary_hosts_remedy
from headrace.observe.doctor.evidence import CRITICAL, Evidence
from headrace.observe.doctor.findings import Cause, Finding
from headrace.observe.doctor.remedies import (
    faster_code_remedies,
    lock_samples,
    lock_wait_share,
    making_cause,
    more_workers_remedies,
    predict_less_waiting,
    predicted_remedy,
)
from headrace.observe.doctor.rule import rule
from headrace.observe.doctor.stack_samples import StackSample
from headrace.observe.doctor.transform_shares import TransformShare
from headrace.observe.whatif.prediction import PipelineChange

_CPU_SHARE, _CPU_SHARE_CORES_SHORT = 0.6, 0.3


@rule
def check_cpu_bound_worker(evidence: Evidence) -> Finding | None:
    """Workers compute all the time, and the accelerator waits for them.

    Fires where data wait is at least 5 % of step time, the workers are busy, and their main
    threads are on a core for at least 60 % of the time of making a batch: below that, waiting
    is the larger part of what can be gained. On full cores a worker also waits for a core, so
    30 % is enough there: then at most two thirds of the time were spent waiting for one, as
    with three processes a core. Severity follows the wait that making batches causes; the
    seconds lost are those of the named code alone.
    """
    work = evidence.work
    if not (evidence.starved and evidence.workers_busy) or work is None or not work.cpu_measured:
        return None
    enough = _CPU_SHARE_CORES_SHORT if evidence.cores_short else _CPU_SHARE
    if work.cpu_share < enough:
        return None
    cause = making_cause(evidence, evidence.making_samples)
    remedies = more_workers_remedies(evidence)
    if cause is not None:
        remedies += faster_code_remedies(evidence, cause)
    offload = auxiliary_hosts_remedy(evidence) if evidence.cores_full else None
    remedies += (offload,) if offload is not None else ()
    seconds = _seconds_lost(evidence, cause)
    return evidence.finding(
        _cpu_bound_title(evidence, cause),
        seconds,
        {
            "data_wait_share": evidence.steady_steps.data_wait_share,
            "worker_cpu_share": work.cpu_share,
            "batch_wall_ms": float(work.column("wall_ns").mean() / 1e6),
            "batch_cpu_ms": float(work.column("cpu_ns").mean() / 1e6),
            "batches": len(work),
            "idle_cores": evidence.host.idle_cores,
            "cores_used_by_others": evidence.host.foreign_cores,
        },
        cause=cause,
        remedies=remedies,
        # All of the wait comes from computing, over however many lines it is spread.
        severity=evidence.severity(max(seconds, evidence.making_wait_seconds)),
    )


def _seconds_lost(evidence: Evidence, cause: Cause | None) -> float:
    """Return the wait that would go without the code at fault; all of it if no code is known."""
    if cause is None or evidence.simulator is None:
        return evidence.flow_wait_seconds
    change = PipelineChange(service_factor=max(1.0 - cause.share, 0.01))
    return evidence.waits_solved(evidence.simulator.predict(change))


def _cpu_bound_title(evidence: Evidence, cause: Cause | None) -> str:
    if cause is None:
        return "the workers compute all the time and cannot keep up"
    whose = "the workers' time"
    if evidence.loader is not None and evidence.loader.workers == 0:
        whose = "the time of making batches, which the rank does itself"
    return f"{cause} takes {cause.share:.0%} of {whose}"


_COLLATE_FRAME = re.compile("collate", re.IGNORECASE)
_COLLATE_SHARE = 0.3


@rule
def check_slow_collate(evidence: Evidence) -> Finding | None:
    """Putting samples together to a batch takes a large part of the workers' time.

    Fires where data wait is at least 5 % of step time and collating takes at least 30 % of making a
    batch. Stacking tensors takes a few per cent; a third means padding or conversion in Python.
    """
    work = evidence.work
    if not (evidence.starved and evidence.workers_busy) or work is None:
        return None
    share = float(work.column("collate_ns").sum() / max(work.column("wall_ns").sum(), 1.0))
    if share < _COLLATE_SHARE:
        return None
    cause = _collate_cause(evidence, share)
    remedies = faster_code_remedies(evidence, cause, cause.name or "collating")
    seconds = evidence.flow_wait_seconds * share
    where = f" at {cause.place}" if cause.place else ""
    return evidence.finding(
        f"collating{where} takes {share:.0%} of the time of making a batch",
        seconds,
        {
            "data_wait_share": evidence.steady_steps.data_wait_share,
            "collate_share": share,
            "collate_ms": float(work.column("collate_ns").mean() / 1e6),
            "batches": len(work),
        },
        cause=cause,
        remedies=remedies + more_workers_remedies(evidence),
    )


def _collate_cause(evidence: Evidence, share: float) -> Cause:
    """Return the hottest line below the function that collates, or else the timed collate_fn."""
    timed = next((item for item in evidence.transforms if item.name == "collate_fn"), None)
    # torch's other calls there make samples; for a stream, functions of any name do.
    is_map = evidence.loader is not None and evidence.loader.style == "map"
    inside = tuple(
        item
        for item in evidence.making_samples
        if item.passes(_COLLATE_FRAME) or (is_map and _is_inside(item, timed))
    )
    seen = making_cause(evidence, inside) if inside else None
    return Cause(
        file=seen.file if seen else timed.file if timed else "",
        line=seen.line if seen else timed.line if timed else 0,
        function=seen.function if seen else "",
        transform="collate_fn",
        share=share,
    )


def _is_inside(sample: StackSample, timed: TransformShare | None) -> bool:
    """Return whether torch called a function there that begins where the timed one does."""
    return timed is not None and any(
        caller.file.endswith("torch/utils/data/_utils/fetch.py")
        and called.file == timed.file
        and called.line >= timed.line
        and not called.function.endswith(("__getitem__", "__getitems__"))
        for caller, called in pairwise(sample.frames)
    )


@rule
def check_lock_contention(evidence: Evidence) -> Finding | None:
    """Workers wait for each other: for a lock, a manager's object or a queue.

    Fires where data wait is at least 5 % of step time and workers, while making batches, stand
    in code that takes a lock for at least 20 % of that time. More workers do not help then:
    they queue up.
    """
    if not (evidence.starved and evidence.workers_busy) or not evidence.making_samples:
        return None
    share = lock_wait_share(evidence)
    if share < CRITICAL:
        return None
    cause = making_cause(evidence, lock_samples(evidence), off_cpu_only=True)
    prediction = predict_less_waiting(evidence, share)
    seconds = evidence.flow_wait_seconds * share
    if prediction is not None:
        seconds = max(evidence.waits_solved(prediction), seconds)
    where = f" in {cause}" if cause is not None else ""
    how = "Let each worker open its own file or connection, so that nothing is shared."
    return evidence.finding(
        f"workers wait for each other {share:.0%} of their time{where}",
        seconds,
        {
            "data_wait_share": evidence.steady_steps.data_wait_share,
            "lock_wait_share": share,
            "worker_cpu_share": evidence.work.cpu_share if evidence.work else None,
        },
        cause=cause,
        remedies=(predicted_remedy("no-lock", "no waiting for each other", prediction, how),)
        if prediction
        else (),
    )
