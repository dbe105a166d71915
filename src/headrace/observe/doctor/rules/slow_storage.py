"""Workers wait for files or the network, and the accelerator for them.

Fires where data wait is at least 5 % of step time, the workers are busy making batches but off the
CPU for at least 40 % of that time, cores are free (else they wait for those), and reads were seen:
bytes read, or code that reads where they wait. A worker that got less than 50 MB/s while it waited
is bound by latency, which more workers hide; above that by bandwidth, which they share.
"""

from __future__ import annotations

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.model import Finding, Remedy
from headrace.observe.doctor.places import LOCK, is_reading
from headrace.observe.doctor.remedies import less_waiting, making_cause, more_workers, predicted
from headrace.observe.doctor.stacks import waiting_ns

RULE = "slow-storage"
_WAITING_SHARE = 0.4
_BANDWIDTH_BYTES_PER_S = 50e6


def check(evidence: Evidence) -> Finding | None:
    """Return the finding, where the rule fires."""
    work = evidence.work
    if not (evidence.starved and evidence.workers_busy) or work is None or not work.cpu_measured:
        return None
    waiting = 1.0 - work.cpu_share
    if waiting < _WAITING_SHARE or evidence.cores_full:
        return None
    not_locks = tuple(sighting for sighting in evidence.making if not sighting.passes(LOCK))
    reading = tuple(sighting for sighting in not_locks if is_reading(sighting))
    read_bytes = float(work.column("read_bytes").sum())
    if evidence.making:
        total = max(sum(sighting.wall_ns for sighting in evidence.making), 1.0)
        waiting = waiting_ns(reading or not_locks) / total
    if waiting < _WAITING_SHARE or not (reading or read_bytes > 0):
        return None
    waited_s = waiting * float(work.column("wall_ns").sum()) / 1e9
    bytes_per_s = read_bytes / max(waited_s, 1e-9)
    kind = "bandwidth" if bytes_per_s >= _BANDWIDTH_BYTES_PER_S else "latency"
    cause = making_cause(evidence, reading or not_locks, weigh_waiting=True)
    prediction = less_waiting(evidence, waiting)
    seconds = evidence.flow_wait_seconds
    if prediction is not None:
        seconds = evidence.waits_solved(prediction.wait_share)
    where = f" in {cause}" if cause is not None else ""
    return Finding(
        rule=RULE,
        severity=evidence.severity(seconds),
        title=f"workers wait for storage {waiting:.0%} of their time{where}",
        seconds_lost=seconds,
        evidence={
            "data_wait_share": evidence.flowing.share("data_wait"),
            "worker_waiting_share": waiting,
            "bound": kind,
            "read_mb_per_s": bytes_per_s / 1e6,
            "read_kb_per_sample": read_bytes / max(float(work.column("samples").sum()), 1.0) / 1e3,
            "batches": len(work),
        },
        cause=cause,
        remedies=_remedies(evidence, waiting, kind),
    )


def _remedies(evidence: Evidence, waiting: float, kind: str) -> tuple[Remedy, ...]:
    remedies: list[Remedy] = []
    more = more_workers(evidence)
    if more is not None and kind == "latency":
        remedies.append(more[0])
    prediction = less_waiting(evidence, waiting)
    if prediction is not None:
        remedies.append(
            predicted(
                "shards",
                "reading shards, or a cache on local disk,",
                prediction,
                "Pack the files with `headrace data pack`, or keep a copy on local disk.",
            )
        )
    return tuple(remedies)
