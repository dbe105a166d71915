"""What the attempts of a run did with their time: how long they lasted, waited, and trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import RecordsError
from headrace.observe.doctor.gpu_usage import gpu_utilisation
from headrace.observe.whatif.loaders_in_turn import main_loader
from headrace.observe.whatif.measured_pipeline import HostUsage, read_host_usage
from headrace.observe.whatif.offload_stats import read_offload_stats
from headrace.observe.whatif.tables import (
    FEW_CACHED_BYTES,
    CachedTables,
    Columns,
    Tables,
    columns,
)
from headrace.observe.whatif.train_steps import TrainSteps, read_steps, train_rows
from headrace.platforms.instance_groups import AUXILIARY, TRAINING
from headrace.records.attempt_outcomes import attempt_outcomes
from headrace.records.reader import Records, open_records, recorded_attempts
from headrace.records.run_folder import Attempt, Outcome, RunFolder
from headrace.records.span_reader import SpanReader


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochParts:
    """What the main loader gave in an attempt, in batches of all ranks together.

    Attributes:
        batches: That were trained on.
        longest: Of the longest iteration, whether or not it came to its end.
        has_ended: Whether any came to its end.
        samples_a_batch: The mean; 0: unknown.
    """

    batches: float = 0.0
    longest: float = 0.0
    has_ended: bool = False
    samples_a_batch: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptUse:
    """What an attempt did in its time, as the mean over its ranks."""

    seconds: float  # from its begin to its end, or until now
    running: bool
    failed: bool  # it ended with an error, or was killed; not if somebody stopped it
    data_wait_s: float | None = None  # for which the accelerators waited for data; None: unknown
    samples: int = 0  # that all ranks took
    parts: EpochParts = EpochParts()


@dataclass(frozen=True, slots=True)
class Utilisation:
    """How busy the hosts of a group were while steps ran, 0 to 1; None: not recorded."""

    cpu: float | None = None
    gpu: float | None = None


def attempt_uses(run: Path, *, training: bool = True) -> Iterator[tuple[Attempt, AttemptUse]]:
    """Yield the attempts of a run, oldest first, with what they did.

    Without `training`, waits and samples stay unknown: to find them reads all steps. So they do of
    an attempt that ended before anything was recorded, whose folder of records may be there.
    """
    recorded, attempts = recorded_attempts(run), RunFolder(run).attempts()
    for attempt, outcome in zip(attempts, attempt_outcomes(run, attempts), strict=True):
        records = open_records(run, attempt.number) if attempt.number in recorded else None
        running = outcome == "going on" and attempt.ended_s is None
        seconds = _seconds(attempt, records, running=running)
        failed = outcome in {"failed", "killed"}
        trained = {}
        if records is not None and training:
            trained = _trained(CachedTables(records, FEW_CACHED_BYTES))
        yield attempt, AttemptUse(seconds=seconds, running=running, failed=failed, **trained)


def seen_until_s(run: Path, last: Attempt, outcome: Outcome) -> float:
    """Return until when a run's last attempt is known to have gone on, in seconds since 1970."""
    if outcome == "going on":
        return last.now_s()
    try:
        recorded = last.number in recorded_attempts(run)
        records = open_records(run, last.number) if recorded else None
        return last.started_s + _seconds(last, records, running=False)
    except RecordsError:  # damaged ones, which the page says elsewhere
        return last.started_s


def _seconds(attempt: Attempt, records: Records | None, *, running: bool) -> float:
    """Return how long an attempt has lasted; one without an end until its last record."""
    if attempt.lasted_s is not None:
        return attempt.lasted_s
    if running:
        return attempt.now_s() - attempt.started_s
    if records is None:
        return 0.0
    hosts = columns(records, "hosts")
    if not hosts.count:
        return 0.0
    return max(_last_record_s(records, int(hosts["unix_offset_ns"][0])) - attempt.started_s, 0.0)


def _last_record_s(records: Records, unix_offset_ns: int) -> float:
    """Return when the last step or tick of a host's records ended, since 1970; 0 without any."""
    reader = SpanReader(records)
    bounds_ns = [reader.bounds_ns(name) for name in ("steps", "system")]
    last_ns = max((found[1] for found in bounds_ns if found is not None), default=None)
    return 0.0 if last_ns is None else (last_ns + unix_offset_ns) / 1e9


def _trained(tables: Tables) -> dict[str, Any]:
    """Return waits, samples and epochs of all steps, those of the warm-up too.

    Without an optimizer, as in inference, a run's batches are its steps.
    """
    counted = read_steps(tables, any_kind=True)
    steps, _ = train_rows(tables, counted.kind)
    ranks = max(len(np.unique(steps["rank"])), 1)
    waited_s = counted.data_wait_share * float(steps["wall_ns"].sum()) / ranks / 1e9
    return {
        "data_wait_s": waited_s if len(counted) else None,
        "samples": int(steps["samples"].clip(0).sum()),
        "parts": _epoch_parts(tables, main_loader(counted), steps, ranks),
    }


def _epoch_parts(tables: Tables, loader: int, steps: Columns, ranks: int) -> EpochParts:
    fed = steps.having(loader=loader)
    batches, samples = float(fed["batches"].sum()), fed["samples"]
    fetches = columns(tables, "fetches").having(loader=loader)
    if loader < 0 or not batches or not fetches.count:
        return EpochParts()
    are_counted = bool((samples >= 0).all())
    # That which finds the end of an iteration has the number of its batches.
    asked = fetches["batch"] + 1 - fetches["ended"]
    return EpochParts(
        batches=batches,
        longest=float(asked.max()) * ranks,
        has_ended=bool((fetches["ended"] > 0).any()),
        samples_a_batch=float(samples.sum()) / batches if are_counted else 0.0,
    )


def trained_epochs(uses: Sequence[AttemptUse]) -> float:
    """Return the epochs of attempts together, parts of one too; 0 where none came to its end.

    An epoch is the longest iteration of them all: one that begins at a checkpoint within an epoch
    has the rest of it alone. Attempts may differ in ranks and in the size of a batch, so samples
    are compared where they were counted.
    """
    parts = [use.parts for use in uses if use.parts.batches]
    in_samples = all(each.samples_a_batch for each in parts)
    sizes = [each.samples_a_batch if in_samples else 1.0 for each in parts]
    if not any(each.has_ended for each in parts):
        return 0.0
    epoch = max(each.longest * size for each, size in zip(parts, sizes, strict=True))
    return sum(each.batches * size for each, size in zip(parts, sizes, strict=True)) / epoch


def auxiliary_hosts(run: Path, attempt: int) -> int:
    """Return how many auxiliary hosts made batches in an attempt."""
    if attempt not in recorded_attempts(run):
        return 0
    made = columns(CachedTables(open_records(run, attempt)), "auxiliary_batches")
    return len(set(made["host"]))


def utilisation_by_role(run: Path) -> Mapping[str, Utilisation]:
    """Return how busy the hosts that train, and those that only make batches, were at last."""
    recorded = recorded_attempts(run)
    if not recorded:
        return {}
    tables = CachedTables(open_records(run, max(recorded)), FEW_CACHED_BYTES)
    return utilisation_in(tables, read_steps(tables, any_kind=True))


def utilisation_in(tables: Tables, steps: TrainSteps) -> Mapping[str, Utilisation]:
    """Return the same of an attempt's records and the steps that were read from them."""
    host = read_host_usage(tables, steps.span_ns)
    records = _UsageRecords(system=columns(tables, "system"), steps=steps, host=host)
    training = Utilisation(
        cpu=None if host.busy_cores is None else min(host.busy_cores / host.cores, 1.0),
        gpu=gpu_utilisation(records),
    )
    return {TRAINING: training, AUXILIARY: Utilisation(cpu=_auxiliary_cpu(tables, steps))}


@dataclass(frozen=True, slots=True, kw_only=True)
class _UsageRecords:
    """See `UsageRecords`; to gather all of the doctor's evidence takes a tenth of a second."""

    system: Columns
    steps: TrainSteps
    host: HostUsage


def _auxiliary_cpu(tables: Tables, steps: TrainSteps) -> float | None:
    span, made = steps.span_ns, columns(tables, "auxiliary_batches")
    if span is None or not made.count:  # nor is the main loader looked for, in all steps
        return None
    offload = read_offload_stats(tables, main_loader(steps), span)
    if offload is None or not offload.workers:
        return None
    inside = made.where((made["start_ns"] >= span[0]) & (made["start_ns"] <= span[1]))
    cores = offload.workers * len(steps.ranks)
    return min(float(inside["process_cpu_ns"].sum()) / (cores * (span[1] - span[0])), 1.0)
