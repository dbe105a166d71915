"""Workers compute all the time, and the accelerator waits for them."""

from __future__ import annotations

from headrace.observe.doctor.core_remedies import auxiliary_hosts
from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.model import Cause, Finding, Remedy
from headrace.observe.doctor.remedies import faster, making_cause, more_workers
from headrace.observe.whatif.prediction import Change

RULE = "cpu-bound-worker"
_CPU_SHARE, _CPU_SHARE_CORES_SHORT = 0.6, 0.3


def check(evidence: Evidence) -> Finding | None:
    """Workers compute all the time, and the accelerator waits for them.

    Fires where data wait is at least 5 % of step time, the workers are busy, and their main
    threads are on a core for at least 60 % of the time of making a batch: below that, waiting
    is the larger part of what can be gained. With the host's cores full, whoever fills them, a
    worker also waits for a core, so 30 % is enough there: then at most two thirds of the time
    were spent waiting for one, as with three processes a core. How severe it is goes by the
    wait that the making of batches causes; the seconds lost are those that the named code alone
    costs.
    """
    work = evidence.work
    if not (evidence.starved and evidence.workers_busy) or work is None or not work.cpu_measured:
        return None
    enough = _CPU_SHARE_CORES_SHORT if evidence.cores_short else _CPU_SHARE
    if work.cpu_share < enough:
        return None
    cause = making_cause(evidence, evidence.making)
    more = more_workers(evidence)
    remedies: tuple[Remedy, ...] = (more[0],) if more else ()
    if cause is not None:
        remedies += faster(evidence, cause, cause.name or cause.place)
    away = auxiliary_hosts(evidence) if evidence.cores_full else None
    remedies += (away,) if away is not None else ()
    seconds = _seconds(evidence, cause)
    return Finding(
        rule=RULE,
        # However the computing is spread over lines, all of the wait comes of it.
        severity=evidence.severity(max(seconds, evidence.making_wait_seconds)),
        title=_title(evidence, cause),
        seconds_lost=seconds,
        evidence={
            "data_wait_share": evidence.flowing.data_wait_share,
            "worker_cpu_share": work.cpu_share,
            "batch_wall_ms": float(work.column("wall_ns").mean() / 1e6),
            "batch_cpu_ms": float(work.column("cpu_ns").mean() / 1e6),
            "batches": len(work),
            "idle_cores": evidence.host.idle_cores,
            "cores_used_by_others": evidence.host.foreign_cores,
        },
        cause=cause,
        remedies=remedies,
    )


def _seconds(evidence: Evidence, cause: Cause | None) -> float:
    """What would go without the code at fault; all of it where no code was seen."""
    if cause is None or evidence.simulator is None:
        return evidence.flow_wait_seconds
    change = Change(service_factor=max(1.0 - cause.share, 0.01))
    return evidence.waits_solved(evidence.simulator.predict(change))


def _title(evidence: Evidence, cause: Cause | None) -> str:
    if cause is None:
        return "the workers compute all the time and cannot keep up"
    whose = "the workers' time"
    if evidence.loader is not None and evidence.loader.workers == 0:
        whose = "the time of making batches, which the rank does itself"
    return f"{cause} takes {cause.share:.0%} of {whose}"
