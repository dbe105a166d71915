"""More workers would make the accelerator wait less, and there are cores for them."""

from __future__ import annotations

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.model import Finding
from headrace.observe.doctor.remedies import making_cause, more_workers

RULE = "too-few-workers"


def check(evidence: Evidence) -> Finding | None:
    """More workers would make the accelerator wait less, and there are cores for them.

    Fires where data wait is at least 5 % of step time, the workers are busy, and the simulation
    says that more of them give at least 5 %: less than that lies within a run's own noise.
    """
    work, loader = evidence.work, evidence.loader
    if not (evidence.starved and evidence.workers_busy) or work is None or loader is None:
        return None
    found = more_workers(evidence)
    if found is None:
        return None
    remedy, prediction = found
    seconds = evidence.waits_solved(prediction)
    if loader.workers == 0:
        title = "the rank makes its batches itself while the accelerator waits: no workers"
    else:
        plural = "s are" if loader.workers > 1 else " is"
        title = f"{loader.workers} worker{plural} too few for the loader{loader.place}"
    return Finding(
        rule=RULE,
        severity=evidence.severity(seconds),
        title=title,
        seconds_lost=seconds,
        evidence={
            "data_wait_share": evidence.flowing.data_wait_share,
            "workers": loader.workers,
            "worker_idle_share": work.idle_share,
            "batch_wall_ms": float(work.column("wall_ns").mean() / 1e6),
            "worker_cpu_share": work.cpu_share,
            "cores": evidence.host.cores,
            "idle_cores": evidence.host.idle_cores,
        },
        cause=making_cause(evidence, evidence.making),
        remedies=(remedy,),
    )
