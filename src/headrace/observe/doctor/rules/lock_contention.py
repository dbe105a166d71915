"""Workers wait for each other: for a lock, a manager's object or a queue."""

from __future__ import annotations

from headrace.observe.doctor.evidence import CRITICAL, Evidence
from headrace.observe.doctor.model import Finding
from headrace.observe.doctor.remedies import (
    less_waiting,
    lock_wait_share,
    making_cause,
    predicted,
    taking_locks,
)

RULE = "lock-contention"


def check(evidence: Evidence) -> Finding | None:
    """Workers wait for each other: for a lock, a manager's object or a queue.

    Fires where data wait is at least 5 % of step time and workers, while making batches, stand
    in code that takes a lock for at least 20 % of that time. More workers do not help then:
    they queue up.
    """
    if not (evidence.starved and evidence.workers_busy) or not evidence.making:
        return None
    share = lock_wait_share(evidence)
    if share < CRITICAL:
        return None
    cause = making_cause(evidence, taking_locks(evidence), weigh_waiting=True)
    prediction = less_waiting(evidence, share)
    seconds = evidence.flow_wait_seconds * share
    if prediction is not None:
        seconds = max(evidence.waits_solved(prediction), seconds)
    where = f" in {cause}" if cause is not None else ""
    how = "Let each worker open its own file or connection, so that nothing is shared."
    return Finding(
        rule=RULE,
        severity=evidence.severity(seconds),
        title=f"workers wait for each other {share:.0%} of their time{where}",
        seconds_lost=seconds,
        evidence={
            "data_wait_share": evidence.flowing.data_wait_share,
            "lock_wait_share": share,
            "worker_cpu_share": evidence.work.cpu_share if evidence.work else None,
        },
        cause=cause,
        remedies=(predicted("no-lock", "no waiting for each other", prediction, how),)
        if prediction
        else (),
    )
