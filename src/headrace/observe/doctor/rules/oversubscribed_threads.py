"""Workers and their threads ask for more cores than there are."""

from __future__ import annotations

from headrace.observe.doctor.core_remedies import one_thread_a_worker
from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.model import Finding, Remedy
from headrace.observe.doctor.remedies import making_cause, predicted
from headrace.observe.whatif.prediction import with_workers
from headrace.observe.whatif.scaling import THREADS

RULE = "oversubscribed-threads"
_WORKERS_A_CORE = 2.0


def check(evidence: Evidence) -> Finding | None:
    """Workers and their threads ask for more cores than there are.

    Fires where data wait is at least 5 % of step time, the cores are full, and either the
    workers' processes use at least 1.5 times the CPU time of their main threads (OpenMP, OpenCV
    or MKL threads in each worker) or there are more than twice as many workers as cores.
    """
    work, loader = evidence.work, evidence.loader
    if not evidence.starved or work is None or loader is None or not work.cpu_measured:
        return None
    crowded = loader.workers * evidence.host.ranks > _WORKERS_A_CORE * evidence.host.cores
    threaded = work.threads >= THREADS and loader.workers > 0
    if not evidence.cores_full or not (crowded or threaded):
        return None
    seconds = evidence.flow_wait_seconds
    if threaded:
        seconds *= 1.0 - 1.0 / work.threads
        title = f"each worker runs {work.threads:.1f} threads' worth of CPU on cores that are full"
    else:
        seconds *= 0.5
        title = f"{loader.workers} workers share {evidence.host.cores:g} cores"
    return Finding(
        rule=RULE,
        severity=evidence.severity(seconds),
        title=title,
        seconds_lost=seconds,
        evidence={
            "cpu_time_over_main_thread": work.threads,
            "workers": loader.workers,
            "ranks": evidence.host.ranks,
            "cores": evidence.host.cores,
            "busy_cores": evidence.host.busy_cores,
        },
        # The line whose work the threads share.
        cause=making_cause(evidence, evidence.making) if threaded else None,
        remedies=_remedies(evidence, threaded=threaded),
    )


def _remedies(evidence: Evidence, *, threaded: bool) -> tuple[Remedy, ...]:
    loader, simulator = evidence.loader, evidence.simulator
    if loader is None or simulator is None:
        return ()
    if threaded:
        remedy = one_thread_a_worker(evidence)
        return (remedy,) if remedy is not None else ()
    fewer = max(int(evidence.host.cores // evidence.host.ranks), 1)
    return (
        predicted(
            "workers",
            f"{fewer} workers instead of {loader.workers}",
            with_workers(simulator, fewer),
            f"Give the DataLoader{loader.place} num_workers={fewer}.",
            loader.overridden("num_workers", fewer),
        ),
    )
