"""Workers wait for many small files: each costs an open and a read, however little it holds."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.observe.doctor.activity import is_lock, is_sleep, reads_own_files
from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.model import Finding, Remedy
from headrace.observe.doctor.remedies import less_waiting, making_cause, more_workers, predicted
from headrace.observe.doctor.stacks import Sighting, waiting_ns
from headrace.observe.whatif.measured import Work

RULE = "small-files"
_WAITING_SHARE = 0.4
_READ_BYTES, _SAMPLE_BYTES = 256 * 2**10, 2**20
_READS_A_SAMPLE = 1.0
_BANDWIDTH_BYTES_PER_S = 50e6


def check(evidence: Evidence) -> Finding | None:
    """Workers wait for many small files: each costs an open and a read, however little it holds.

    Fires where data wait is at least 5 % of step time and the workers are busy making batches,
    but off the CPU for at least 40 % of that time in code that opens files and reads them,
    while the run itself does not fill the cores. The files must be small and many: a read
    brings less than 256 KiB, a sample takes one or more and holds less than 1 MiB. And fewer
    than 50 MB/s come while they wait: then it is requests that take the time, not bytes. All
    else that workers read is `slow-storage`'s: big files, one file that is read piece by piece,
    pipes, sockets; it is not told beside this.

    Reads are the process's read calls, so records of before they were counted say nothing here.
    """
    work = evidence.work
    if not (evidence.starved and evidence.workers_busy) or work is None or not work.cpu_measured:
        return None
    reads = _reads(work)
    if reads is None or evidence.cores_full:
        return None
    files = _waiting_for_files(evidence)
    total_ns = sum(sighting.wall_ns for sighting in evidence.making)
    waiting = waiting_ns(files) / max(total_ns, 1.0)
    waited_s = waiting * float(work.column("wall_ns").sum()) / 1e9
    if waiting < _WAITING_SHARE or not reads.small:
        return None
    bytes_per_s = reads.bytes / max(waited_s, 1e-9)
    if bytes_per_s >= _BANDWIDTH_BYTES_PER_S:
        return None
    cause = making_cause(evidence, files, weigh_waiting=True)
    where = f" in {cause}" if cause is not None else ""
    seconds, remedies = _remedies(evidence, waiting)
    return Finding(
        rule=RULE,
        severity=evidence.severity(seconds),
        title=f"workers wait for small files {waiting:.0%} of their time{where}",
        seconds_lost=seconds,
        evidence={
            "data_wait_share": evidence.flowing.data_wait_share,
            "worker_waiting_share": waiting,
            "reads_a_sample": reads.a_sample,
            "kb_a_read": reads.bytes_a_read / 1e3,
            "read_kb_per_sample": reads.bytes / reads.samples / 1e3,
            "read_mb_per_s": bytes_per_s / 1e6,
            "batches": len(work),
        },
        cause=cause,
        remedies=remedies,
    )


@dataclass(frozen=True, slots=True)
class _Reads:
    """What the workers read for their batches.

    Attributes:
        calls: Read calls.
        bytes: What these brought.
        samples: Samples in the batches.
    """

    calls: float
    bytes: float
    samples: float

    @property
    def a_sample(self) -> float:
        """Read calls a sample."""
        return self.calls / self.samples

    @property
    def bytes_a_read(self) -> float:
        """Bytes that a call brought, on average."""
        return self.bytes / self.calls

    @property
    def small(self) -> bool:
        """Whether there are many reads, and little in each and in each sample."""
        return (
            self.a_sample >= _READS_A_SAMPLE
            and self.bytes_a_read < _READ_BYTES
            and self.bytes < _SAMPLE_BYTES * self.samples
        )


def _reads(work: Work) -> _Reads | None:
    calls, samples = float(work.column("reads").sum()), float(work.column("samples").sum())
    if calls <= 0 or samples <= 0:  # not recorded
        return None
    return _Reads(calls, float(work.column("read_bytes").sum()), samples)


def _waiting_for_files(evidence: Evidence) -> tuple[Sighting, ...]:
    return tuple(
        sighting
        for sighting in evidence.making
        if reads_own_files(sighting) and not (is_lock(sighting) or is_sleep(sighting))
    )


def _remedies(evidence: Evidence, waiting: float) -> tuple[float, tuple[Remedy, ...]]:
    """Return the seconds lost, and what helps, with what it would give.

    A sample takes an open and a read now, two answers of the storage or more. From a shard it is
    one read of a file that is open, so half of that waiting goes at least; and what comes next is
    read ahead, so a tenth of it may be all that stays. Between these the gain is simulated: service
    times keep their CPU part, their waiting part shrinks.
    """
    prediction = less_waiting(evidence, waiting)
    more = more_workers(evidence)
    others = (more[0],) if more is not None else ()
    if prediction is None:
        return evidence.flow_wait_seconds * waiting, others
    shards = predicted(
        "shards",
        "shards instead of single files",
        prediction,
        "Pack the files once with `headrace data pack`, and read them with headrace.ShardDataset.",
    )
    return evidence.waits_solved(prediction), (shards, *others)
