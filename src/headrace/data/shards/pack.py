"""The packing of a source into shards, an index and a manifest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import DatasetError, NoSpaceError, StorageError, TooManyBadSamplesError
from headrace.data.shards.manifest import DECODED, DatasetManifest
from headrace.data.shards.packing_plan import (
    PackingPlan,
    claim_destination,
    finished_manifest,
    finished_shards,
    measure_scale,
    packing_key,
    refuse_foreign_records,
    refuse_overlap,
    remove_state,
    resume_plan,
    shard_bounds,
    shuffled_rows,
    tar_bytes,
)
from headrace.data.shards.reports import (
    PackProgress,
    ProgressCallback,
    ProgressTally,
    check_bad_files,
    report_listing,
)
from headrace.data.shards.shard_packer import (
    CheckFunction,
    PackOptions,
    RecodeFunction,
    ShardPacker,
    ShardTask,
    record_name,
)
from headrace.data.shards.shard_records import DatasetDescription, ShardRecord, assemble, summarise
from headrace.data.shards.sources.sample_table import SampleTable, samples_of
from headrace.data.shards.sources.source_kinds import list_source
from headrace.data.shards.task_pool import TaskPool, map_in_order
from headrace.data.storage import Store, open_store

# Beyond max_bad packing goes on, to list many bad files at once, but not without end.
_BEYOND_BUDGET = 1000
_CONCURRENT_RECORDS = 8
_AFTER_BAD = (
    "The same command reads them anew; finished shards without such files are kept. A folder or "
    "table that was changed is another source, which needs an empty destination."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """The result of a packing."""

    url: str  # the dataset
    manifest: DatasetManifest
    already: bool = False  # this packing had been finished before; nothing was done


def pack(
    source: str,
    destination: str,
    options: PackOptions,
    *,
    recode: RecodeFunction | None = None,
    check: CheckFunction | None = None,
    progress: ProgressCallback | None = None,
) -> PackReport:
    """Pack a source; an interrupted packing resumes where it stopped.

    The same source and options give the same bytes, for any number of workers.

    Args:
        source: A folder of class folders, pairs or images, or a table; see `sources.source_kinds`.
        destination: A folder that is empty, or holds this same packing.
        options: The packing options.
        recode: Changes members; must pickle.
        check: Decodes each unchanged member and raises BadSampleError where it cannot; must pickle.
            The manifest records that it ran, and readers may then rely on decodable files.
        progress: Called with the progress.

    Raises:
        DatasetError: Nothing to pack, a source that does not fit, or a destination in use.
        TooManyBadSamplesError: More unreadable files than `options.max_bad`; all are named.
        StorageError: Source or destination fails. Finished shards are kept.
    """
    on_progress = progress or (lambda _: None)
    store = open_store(destination)
    refuse_overlap(open_store(source).url, store.url)
    table = list_source(source, options.source, report_listing(on_progress))
    options_entry = options.described() | ({DECODED: True} if check is not None else {})
    manifest = finished_manifest(store, options_entry, table.source.listing)
    if manifest is not None:
        remove_state(store)
        return PackReport(url=store.url, manifest=manifest, already=True)
    if not options.keep_order:
        table = table.take(shuffled_rows(len(table), options.seed))
    plan = _plan(store, table, packing_key(table.source.listing, options_entry), recode)
    files = 1 if table.masks is None else 2
    packed = plan.scale.packed_bytes(table.known_bytes())
    bounds = shard_bounds(tar_bytes(packed, files), options.shard_bytes)
    job = ShardPacker(
        source_url=table.url, destination_url=destination, recode=recode, check=check, key=plan.key
    )
    complete = _pack_shards(store, table, bounds, job, options, on_progress)
    on_progress(PackProgress(stage="indexing"))
    finished = _finished(store, len(bounds) - 1, complete=complete)
    summary = summarise(refuse_foreign_records(_parts(store, finished), plan.key, store.url))
    try:
        check_bad_files(summary.bad, options.max_bad, table.url, complete=complete)
    except TooManyBadSamplesError as error:
        for record in _parts(store, finished):
            if record.bad:  # the next packing makes the shard again
                store.delete(record_name(record.number))
        raise TooManyBadSamplesError(f"{error} {_AFTER_BAD}") from None
    description = DatasetDescription(
        layout="tar", source=table.source, classes=table.classes, options=options_entry
    )
    manifest = assemble(store, summary, lambda: _parts(store, finished), description)
    remove_state(store)
    return PackReport(url=store.url, manifest=manifest)


def _plan(store: Store, table: SampleTable, key: str, recode: RecodeFunction | None) -> PackingPlan:
    plan = resume_plan(store, key)
    if plan is None:
        plan = PackingPlan(key=key, source_url=table.url, scale=measure_scale(table, recode))
        plan = claim_destination(store, plan)
    return plan


def _pack_shards(
    store: Store,
    table: SampleTable,
    bounds: NDArray[np.int64],
    job: ShardPacker,
    options: PackOptions,
    on_progress: ProgressCallback,
) -> bool:
    """Pack missing shards; return True once all exist, False where too many files were bad."""
    done = finished_shards(store, len(bounds) - 1)
    tasks = [number for number in range(len(bounds) - 1) if number not in done]
    resumed = sum(int(bounds[number + 1] - bounds[number]) for number in done)
    tally = ProgressTally(on_progress, "packing", of_samples=len(table), resumed=resumed)
    tally.add(0, 0, 0)
    with TaskPool(job.run, job.name, min(options.workers, max(len(tasks), 1))) as pool:
        try:
            for _ in pool.run((_task(table, bounds, number) for number in tasks), tally.add):
                if tally.progress.bad > options.max_bad + _BEYOND_BUDGET:
                    return False
        except StorageError as error:
            raise _explained(error, store.url) from error
    return True


def _finished(store: Store, count: int, *, complete: bool) -> list[int]:
    finished = sorted(finished_shards(store, count))
    if complete and len(finished) != count:
        raise DatasetError(
            f"{store.url}: shards that were packed are gone, so another packing to the same place "
            "was under way. Wait for it to end, then run the same command again."
        )
    return finished


def _task(table: SampleTable, bounds: NDArray[np.int64], number: int) -> ShardTask:
    rows = np.arange(bounds[number], bounds[number + 1], dtype=np.int64)
    return ShardTask(number=number, samples=samples_of(table.take(rows)))


def _explained(error: StorageError, url: str) -> StorageError:
    if isinstance(error, NoSpaceError):
        advice = "Free some space, then run the same command again: finished shards are kept."
    else:
        advice = "Finished shards are kept: run the same command again to go on."
    return type(error)(f"{error} {advice} ({url})")


def _parts(store: Store, numbers: Sequence[int]) -> Iterator[ShardRecord]:
    """Yield the records of finished shards in order."""
    for name, data in map_in_order(
        lambda name: (name, store.get(name)), map(record_name, numbers), _CONCURRENT_RECORDS
    ):
        yield ShardRecord.from_bytes(data, f"{store.url}/{name}")
