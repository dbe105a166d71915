"""Rules about the time of making a batch: computing, collating, locks, storage, small files."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

from headrace.observe.doctor.core_contention import (
    keeps_up_without_others,
    reads_come_from_memory,
    storage_wait_share,
)
from headrace.observe.doctor.evidence import CRITICAL, Evidence, TransformShare, rule
from headrace.observe.doctor.findings import Cause, Finding, Remedy
from headrace.observe.doctor.remedies import (
    auxiliary_hosts_remedy,
    faster_code_remedies,
    lock_samples,
    lock_wait_share,
    making_cause,
    more_workers_remedies,
    predict_less_reading,
    predict_less_waiting,
    predicted_remedy,
)
from headrace.observe.doctor.stack_samples import (
    StackSample,
    is_lock,
    is_reading,
    is_sleep,
    reads_own_files,
)
from headrace.observe.whatif.measured_pipeline import BatchWork
from headrace.observe.whatif.prediction import PipelineChange


@rule
def check_cpu_bound_worker(evidence: Evidence) -> Finding | None:
    """Workers compute all the time, and the accelerator waits for them.

    Fires where data wait is at least 5 % of step time, the workers are busy, and their main
    threads are on a core for at least 60 % of the time of making a batch: below that, waiting
    is the larger part of what can be gained. On full cores a worker also waits for a core, so
    30 % is enough there: then at most two thirds of the time were spent waiting for one, as
    with three processes a core. Where other programs fill the cores, and the workers' CPU time
    alone would be no longer than the steps, these are the reason (`data-wait`). Severity
    follows the wait that making batches causes; the seconds lost are those of the named code
    alone.
    """
    work = evidence.work
    if not (evidence.starved and evidence.workers_busy) or work is None or not work.cpu_measured:
        return None
    if work.cpu_share < (0.3 if evidence.cores_short else 0.6) or keeps_up_without_others(evidence):
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


@rule
def check_slow_collate(evidence: Evidence) -> Finding | None:
    """Putting samples together to a batch takes a large part of the workers' time.

    Fires where data wait is at least 5 % of step time and collating takes at least 30 % of making a
    batch. Stacking tensors takes a few per cent where decoding is slow, and up to a third where it
    is fast and new pages of shared memory are not; more means padding or conversion in Python.
    """
    work = evidence.work
    if not (evidence.starved and evidence.workers_busy) or work is None:
        return None
    share = float(work.column("collate_ns").sum() / max(work.column("wall_ns").sum(), 1.0))
    if share < 0.3:
        return None
    cause = _collate_cause(evidence, share)
    remedies = faster_code_remedies(evidence, cause, cause.name or "collating")
    where = f" at {cause.place}" if cause.place else ""
    where = f" by {cause}" if cause.library else where
    return evidence.finding(
        f"collating{where} takes {share:.0%} of the time of making a batch",
        evidence.flow_wait_seconds * share,
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
        if item.passes(re.compile("collate", re.IGNORECASE)) or (is_map and _is_inside(item, timed))
    )
    seen = making_cause(evidence, inside) if inside else None
    if seen is not None and seen.library:
        return replace(seen, share=share)
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
        caller.module_file == "torch/utils/data/_utils/fetch.py"
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
    remedies: tuple[Remedy, ...] = ()
    if prediction is not None:
        seconds = max(evidence.waits_solved(prediction), seconds)
        how = "Let each worker open its own file or connection, so that nothing is shared."
        remedies = (predicted_remedy("no-lock", "no waiting for each other", prediction, how),)
    where = f" in {cause}" if cause is not None else ""
    return evidence.finding(
        f"workers wait for each other {share:.0%} of their time{where}",
        seconds,
        {
            "data_wait_share": evidence.steady_steps.data_wait_share,
            "lock_wait_share": share,
            "worker_cpu_share": evidence.work.cpu_share if evidence.work else None,
        },
        cause=cause,
        remedies=remedies,
    )


_WAITING_SHARE = 0.4
_BANDWIDTH_BYTES_PER_S = 50e6


@rule
def check_slow_storage(evidence: Evidence) -> Finding | None:
    """Workers wait for files or the network, and the accelerator for them.

    Fires where data wait is at least 5 % of step time, the workers are busy making batches but
    off the CPU for at least 40 % of that time in code that reads, and the run itself does not
    fill the cores (otherwise they wait for those). Where other programs fill them, a read waits
    for a core like any code, which does not count; and if neither disks nor the network delivered
    what was read, it was in memory, and the rule does not fire. Libraries may read where the
    source does not show it: without a line that reads, bytes must, at 100 kB a second or more
    while they wait (the probe itself reads a twentieth of that), with a core to spare; a line
    that sleeps or takes a lock is no read. A worker that got less than 50 MB/s while it waited is
    bound by latency, which more workers hide; above that by bandwidth, which they share.
    """
    work = evidence.work
    if not (evidence.starved and evidence.workers_busy) or work is None or not work.cpu_measured:
        return None
    if 1.0 - work.cpu_share < _WAITING_SHARE or evidence.cores_full:
        return None
    if reads_come_from_memory(evidence):
        return None
    reading, waiting = _reading_samples(evidence)
    read_bytes = float(work.column("read_bytes").sum())
    waited_s = waiting * float(work.column("wall_ns").sum()) / 1e9
    bytes_per_s = read_bytes / max(waited_s, 1e-9)
    by_source = any(is_reading(sample) for sample in reading)
    by_bytes = bytes_per_s >= 100e3 and not evidence.cores_short
    if waiting < _WAITING_SHARE or not (by_source or by_bytes):
        return None
    kind = "bandwidth" if bytes_per_s >= _BANDWIDTH_BYTES_PER_S else "latency"
    cause = making_cause(evidence, reading, off_cpu_only=True)
    prediction = predict_less_reading(evidence, waiting)
    seconds = evidence.flow_wait_seconds
    if prediction is not None:
        seconds = evidence.waits_solved(prediction)
    where = f" in {cause}" if cause is not None else ""
    samples = float(work.column("samples").sum())
    return evidence.finding(
        f"workers wait for storage {waiting:.0%} of their time{where}",
        seconds,
        {
            "data_wait_share": evidence.steady_steps.data_wait_share,
            "worker_waiting_share": waiting,
            "bound": kind,
            "read_mb_per_s": bytes_per_s / 1e6,
            "network_share_of_bytes": _column_share(work, "network_bytes", "read_bytes"),
            "timed_reads_share": _column_share(work, "read_ns", "wall_ns"),
            "read_kb_per_sample": read_bytes / samples / 1e3 if samples else None,
            "batches": len(work),
        },
        cause=cause,
        remedies=_slow_storage_remedies(evidence, waiting, kind),
    )


def _column_share(work: BatchWork, part: str, whole: str) -> float | None:
    """Return a column's share of another one, in batches that have it; None if none has."""
    known = work.rows[part] >= 0
    seen = float(work.column(part)[known].sum())
    return min(seen / max(float(work.column(whole)[known].sum()), 1.0), 1.0) if seen else None


def _reading_samples(evidence: Evidence) -> tuple[tuple[StackSample, ...], float]:
    """Return samples of reading, or else of possible reading, and their share of waiting time."""
    if not evidence.making_samples:
        return (), 1.0 - evidence.work.cpu_share if evidence.work is not None else 0.0
    others = tuple(
        sample for sample in evidence.making_samples if not (is_lock(sample) or is_sleep(sample))
    )
    reading = tuple(sample for sample in others if is_reading(sample))
    waiting = storage_wait_share(evidence, reading)
    if waiting >= _WAITING_SHARE:
        return reading, waiting
    rest = tuple(sample for sample in others if not is_reading(sample))
    return rest, storage_wait_share(evidence, rest)


def _slow_storage_remedies(evidence: Evidence, waiting: float, kind: str) -> tuple[Remedy, ...]:
    remedies = more_workers_remedies(evidence) if kind == "latency" else ()
    prediction = predict_less_reading(evidence, waiting)
    if prediction is None:
        return remedies
    shards = predicted_remedy(
        "shards",
        "reading shards, or a cache on local disk,",
        prediction,
        "Pack the files with `headrace data pack`, or keep a copy on local disk. Reading is taken "
        "to go as fast as in the fastest batches of this run, or faster.",
    )
    return (*remedies, shards)


@rule
def check_small_files(evidence: Evidence) -> Finding | None:
    """Workers wait for many small files: each costs an open and a read, however little it holds.

    Fires where data wait is at least 5 % of step time and the workers are busy making batches,
    but off the CPU for at least 40 % of that time in code that opens files and reads them,
    while the run itself does not fill the cores. The files must be small and many: a read
    returns less than 256 KiB, a sample takes one or more and has less than 1 MiB. And fewer
    than 50 MB/s arrive while they wait: then requests take the time, not bytes. All other reads
    of workers belong to `slow-storage`, which is not reported besides this: big files, one file
    that is read piece by piece, pipes, sockets.

    Reads are the process's read calls, so the rule does not fire for records without them.
    """
    work = evidence.work
    if not (evidence.starved and evidence.workers_busy) or work is None or not work.cpu_measured:
        return None
    calls, samples, read_bytes = (
        float(work.column(name).sum()) for name in ("reads", "samples", "read_bytes")
    )
    if calls <= 0 or samples <= 0 or evidence.cores_full:  # 0: not recorded
        return None
    if reads_come_from_memory(evidence):
        return None
    files = tuple(
        sample
        for sample in evidence.making_samples
        if reads_own_files(sample) and not (is_lock(sample) or is_sleep(sample))
    )
    waiting = storage_wait_share(evidence, files)
    waited_s = waiting * float(work.column("wall_ns").sum()) / 1e9
    small = read_bytes < min(256 * 2**10 * calls, 2**20 * samples)
    bytes_per_s = read_bytes / max(waited_s, 1e-9)
    if waiting < _WAITING_SHARE or calls < samples or not small:
        return None
    if bytes_per_s >= _BANDWIDTH_BYTES_PER_S:
        return None
    cause = making_cause(evidence, files, off_cpu_only=True)
    where = f" in {cause}" if cause is not None else ""
    seconds, remedies = _small_files_remedies(evidence, waiting)
    return evidence.finding(
        f"workers wait for small files {waiting:.0%} of their time{where}",
        seconds,
        {
            "data_wait_share": evidence.steady_steps.data_wait_share,
            "worker_waiting_share": waiting,
            "reads_a_sample": calls / samples,
            "kb_a_read": read_bytes / calls / 1e3,
            "read_kb_per_sample": read_bytes / samples / 1e3,
            "read_mb_per_s": bytes_per_s / 1e6,
            "batches": len(work),
        },
        cause=cause,
        remedies=remedies,
    )


def _small_files_remedies(evidence: Evidence, waiting: float) -> tuple[float, tuple[Remedy, ...]]:
    """Return the seconds lost, and remedies with predictions.

    A sample takes an open and a read now, at least two requests to the storage. From a shard it is
    one read of an open file, so at least half of that waiting goes; and later samples are read
    ahead, so a tenth of it may be all that remains. The gain between these is simulated: service
    times keep their CPU part, their waiting part shrinks.
    """
    prediction = predict_less_waiting(evidence, waiting)
    others = more_workers_remedies(evidence)
    if prediction is None:
        return evidence.flow_wait_seconds * waiting, others
    shards = predicted_remedy(
        "shards",
        "shards instead of single files",
        prediction,
        "Pack the files once with `headrace data pack`, and read them with headrace.ShardDataset.",
    )
    return evidence.waits_solved(prediction), (shards, *others)
