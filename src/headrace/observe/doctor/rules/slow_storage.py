"""Workers wait for files or the network, and the accelerator for them."""

from __future__ import annotations

from headrace.observe.doctor.activity import is_lock, is_reading, is_sleep
from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.model import Finding, Remedy
from headrace.observe.doctor.remedies import less_reading, making_cause, more_workers, predicted
from headrace.observe.doctor.stacks import Sighting, waiting_ns
from headrace.observe.whatif.measured import Work

RULE = "slow-storage"
_WAITING_SHARE = 0.4
_BANDWIDTH_BYTES_PER_S = 50e6
_READS_BYTES_PER_S = 100e3


def check(evidence: Evidence) -> Finding | None:
    """Workers wait for files or the network, and the accelerator for them.

    Fires where data wait is at least 5 % of step time, the workers are busy making batches but
    off the CPU for at least 40 % of that time in code that reads, and the run itself does not
    fill the cores (else they wait for those). Libraries may read where nothing in the source
    says so: without a line that reads, bytes must tell, 100 kB a second or more while they wait
    (the probe's own looks read a twentieth of that), with a core to spare; a line that sleeps
    or takes a lock is no read. A worker that got less than 50 MB/s while it waited is bound by
    latency, which more workers hide; above that by bandwidth, which they share.
    """
    work = evidence.work
    if not (evidence.starved and evidence.workers_busy) or work is None or not work.cpu_measured:
        return None
    if 1.0 - work.cpu_share < _WAITING_SHARE or evidence.cores_full:
        return None
    reading, waiting = _reading(evidence)
    read_bytes = float(work.column("read_bytes").sum())
    waited_s = waiting * float(work.column("wall_ns").sum()) / 1e9
    bytes_per_s = read_bytes / max(waited_s, 1e-9)
    told_by_source = any(is_reading(sighting) for sighting in reading)
    told_by_bytes = bytes_per_s >= _READS_BYTES_PER_S and not evidence.cores_short
    if waiting < _WAITING_SHARE or not (told_by_source or told_by_bytes):
        return None
    kind = "bandwidth" if bytes_per_s >= _BANDWIDTH_BYTES_PER_S else "latency"
    cause = making_cause(evidence, reading, weigh_waiting=True)
    prediction = less_reading(evidence, waiting)
    seconds = evidence.flow_wait_seconds
    if prediction is not None:
        seconds = evidence.waits_solved(prediction)
    where = f" in {cause}" if cause is not None else ""
    return Finding(
        rule=RULE,
        severity=evidence.severity(seconds),
        title=f"workers wait for storage {waiting:.0%} of their time{where}",
        seconds_lost=seconds,
        evidence={
            "data_wait_share": evidence.flowing.data_wait_share,
            "worker_waiting_share": waiting,
            "bound": kind,
            "read_mb_per_s": bytes_per_s / 1e6,
            "network_share_of_bytes": _share(work, "network_bytes", "read_bytes"),
            "timed_reads_share": _share(work, "read_ns", "wall_ns"),
            "read_kb_per_sample": read_bytes / max(float(work.column("samples").sum()), 1.0) / 1e3,
            "batches": len(work),
        },
        cause=cause,
        remedies=_remedies(evidence, waiting, kind),
    )


def _share(work: Work, part: str, whole: str) -> float | None:
    """Return what share of a column another one is, in batches that have it; None: none has."""
    known = work.rows[part] >= 0
    seen = float(work.column(part)[known].sum())
    return min(seen / max(float(work.column(whole)[known].sum()), 1.0), 1.0) if seen else None


def _reading(evidence: Evidence) -> tuple[tuple[Sighting, ...], float]:
    """Return where workers read, or else where they may, and the share of time they wait there."""
    if not evidence.making:
        return (), 1.0 - evidence.work.cpu_share if evidence.work is not None else 0.0
    total = max(sum(sighting.wall_ns for sighting in evidence.making), 1.0)
    others = tuple(
        sighting for sighting in evidence.making if not (is_lock(sighting) or is_sleep(sighting))
    )
    reading = tuple(sighting for sighting in others if is_reading(sighting))
    waiting = waiting_ns(reading) / total
    if waiting >= _WAITING_SHARE:
        return reading, waiting
    rest = tuple(sighting for sighting in others if not is_reading(sighting))
    return rest, waiting_ns(rest) / total


def _remedies(evidence: Evidence, waiting: float, kind: str) -> tuple[Remedy, ...]:
    remedies: list[Remedy] = []
    more = more_workers(evidence)
    if more is not None and kind == "latency":
        remedies.append(more[0])
    prediction = less_reading(evidence, waiting)
    if prediction is not None:
        remedies.append(
            predicted(
                "shards",
                "reading shards, or a cache on local disk,",
                prediction,
                "Pack the files with `headrace data pack`, or keep a copy on local disk. Reading "
                "is taken to go as fast as in the fastest batches of this run, or faster.",
            )
        )
    return tuple(remedies)
