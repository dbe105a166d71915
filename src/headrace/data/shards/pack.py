"""The packing of a source into shards, an index and a manifest, by a plan kept in the destination.

.packing/plan.json      source and options, and how the samples were cut
.packing/000000.arrow   the record of a finished shard, written after the shard
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import (
    DatasetError,
    DeniedError,
    NoSpaceError,
    NotFoundError,
    StorageError,
    TooManyBadSamplesError,
    UsageError,
)
from headrace.core.files import remove_abandoned_files
from headrace.data.shards.manifest import DECODED, INDEX_NAME, DatasetManifest
from headrace.data.shards.reports import (
    PackProgress,
    ProgressCallback,
    ProgressTally,
    check_bad_files,
    report_listing,
)
from headrace.data.shards.shard_index import stored_manifest
from headrace.data.shards.shard_packer import (
    PACKING_FOLDER,
    CheckFunction,
    PackOptions,
    RecodeFunction,
    ShardPacker,
    ShardTask,
    SourceReader,
    collect_bad_file,
    named_by_content,
    recode_file,
    record_name,
    shard_name,
)
from headrace.data.shards.shard_records import DatasetDescription, ShardRecord, assemble, summarise
from headrace.data.shards.sources.sample_table import SampleTable, samples_of
from headrace.data.shards.sources.source_kinds import list_source
from headrace.data.shards.tar import BLOCK_BYTES
from headrace.data.shards.task_pool import TaskPool, map_in_order, wait_for_result
from headrace.data.storage import Store, open_store, parse_url

# Weyl increment and mixing constants of SplitMix64 (Steele, Lea, Flood: "Fast splittable
# pseudorandom number generators", OOPSLA 2014), implemented here because NumPy does not promise
# that its own permutations stay the same between versions.
_INCREMENT = 0x9E3779B97F4A7C15
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def shuffled_rows(num_samples: int, seed: int) -> NDArray[np.int64]:
    """Return a permutation of 0 to num_samples - 1 that depends on `seed` alone."""
    start = np.uint64(seed * _INCREMENT % 2**64)
    keys = start + np.arange(1, num_samples + 1, dtype=np.uint64) * np.uint64(_INCREMENT)
    keys = (keys ^ (keys >> np.uint64(30))) * _MIX_1
    keys = (keys ^ (keys >> np.uint64(27))) * _MIX_2
    keys ^= keys >> np.uint64(31)
    return np.argsort(keys, kind="stable").astype(np.int64)


def shard_bounds(sample_bytes: NDArray[np.int64], shard_bytes: int) -> NDArray[np.int64]:
    """Return the first sample of each shard: int64[shards + 1], from 0 to the number of samples.

    There are as many shards as `shard_bytes` requires, rounded up, all of similar size, so that
    none is a small rest; none is empty, and none is larger by more than one sample. `sample_bytes`
    is int64[n], n > 0.
    """
    ends = np.cumsum(sample_bytes)
    total = int(ends[-1])
    shards = min(max(1, -(-total // shard_bytes)), len(sample_bytes))
    targets = [total * number // shards for number in range(1, shards)]
    inner = np.searchsorted(ends, np.array(targets, dtype=np.int64), side="left") + 1
    bounds = np.concatenate([[0], inner, [len(sample_bytes)]]).astype(np.int64)
    # A sample larger than a shard leaves shards without any.
    return np.unique(bounds)


def spread_rows(num_samples: int, count: int) -> NDArray[np.int64]:
    """Return up to `count` rows spread evenly over all rows, always the same ones."""
    count = min(count, num_samples)
    return (np.arange(count, dtype=np.int64) * num_samples) // max(count, 1)


_SAMPLES_MEASURED = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeScale:
    """The ratio of packed sizes to the source's sizes."""

    ratio: float = 1.0  # packed bytes for each byte of the source
    mean_bytes: int = 0  # of a sample whose size is not known beforehand

    def packed_bytes(self, known_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n], the packed sizes of samples of these sizes (-1: unknown)."""
        source = np.where(known_bytes < 0, self.mean_bytes, known_bytes)
        return (source * self.ratio).astype(np.int64)


def measure_scale(table: SampleTable, recode: RecodeFunction | None) -> SizeScale:
    """Measure the scale on a few samples, always the same ones.

    Nothing is read where all sizes are known and there is no recoding.
    """
    known = table.known_bytes()
    if recode is None and bool((known >= 0).all()):
        return SizeScale()
    rows = spread_rows(len(table), _SAMPLES_MEASURED)
    before = after = 0
    with closing(SourceReader(table.url)) as reader:
        for sample, contents in reader.read(samples_of(table.take(rows))):
            for file, content in zip(sample.files, contents, strict=True):
                with collect_bad_file(file.path, []):  # packing meets it again, and reports it
                    data = wait_for_result(content)
                    packed, _ = recode_file(named_by_content(file, data), data, recode, None)
                    before, after = before + len(data), after + len(packed)
    if before == 0:
        return SizeScale()
    return SizeScale(ratio=after / before, mean_bytes=before // len(rows))


_PLAN_NAME = f"{PACKING_FOLDER}/plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingPlan:
    """The plan of a packing, stored in its destination."""

    key: str  # a hash of the source's listing and of the options that affect the bytes
    source_url: str  # for messages
    scale: SizeScale  # measured once, so that a resumed packing cuts the samples in the same way


def finished_manifest(
    store: Store, described: Mapping[str, Any], listing: str
) -> DatasetManifest | None:
    """Return the manifest of this same packing, or None; DatasetError: that of another one."""
    try:
        manifest, _ = stored_manifest(store)
    except NotFoundError:
        return None
    if dict(manifest.options) != dict(described) or manifest.source.listing != listing:
        raise DatasetError(
            f"{store.url} holds a dataset already, of other options or another source "
            f"({manifest.num_samples} samples of {manifest.source.url}). Choose another "
            "destination, or delete that one first."
        )
    return manifest


def resume_plan(store: Store, key: str) -> PackingPlan | None:
    """Return the plan of an unfinished packing, None in a free place; DatasetError: another's."""
    try:
        content = json.loads(bytes(store.get(_PLAN_NAME)))
        plan = PackingPlan(
            key=content["key"],
            source_url=content["source_url"],
            scale=SizeScale(**content["scale"]),
        )
    except NotFoundError:
        _refuse_foreign(store)
        return None
    except (ValueError, KeyError, TypeError):
        raise DatasetError(
            f"{store.url}/{_PLAN_NAME} is damaged. Delete the destination and pack again."
        ) from None
    if plan.key != key:
        raise DatasetError(
            f"{store.url} holds an unfinished packing of other options, or its source has changed "
            f"({plan.source_url}). Run it again as it was, choose another destination, or delete "
            "what is there."
        )
    return plan


def refuse_foreign_records(
    records: Iterable[ShardRecord], key: str, url: str
) -> Iterator[ShardRecord]:
    """Yield records; raises DatasetError at one that another packing wrote.

    That happens where two packings started at once and the store let both claim the destination.
    """
    for record in records:
        if record.key not in {key, ""}:  # "": of a version that did not write it
            raise DatasetError(
                f"{url}: {record_name(record.number)} is of another packing to the same place. "
                "Delete what is there and pack again, each source to a destination of its own."
            )
        yield record


def finished_shards(store: Store, count: int) -> set[int]:
    """Return the numbers of the shards that need not be packed again."""
    names = {info.path for info in store.list(PACKING_FOLDER)}
    return {number for number in range(count) if record_name(number) in names}


def remove_state(store: Store) -> None:
    """Remove the packing state, which the manifest replaces. The plan goes last.

    It stays, and nobody reads it, where one may write and not delete.
    """
    with suppress(DeniedError):
        for info in store.list(PACKING_FOLDER):
            if info.path != _PLAN_NAME:
                store.delete(info.path)
        store.delete(_PLAN_NAME)
    location = parse_url(store.url)
    if location.kind == "local":  # only there can folders be empty, and files be unfinished
        folder = Path(location.prefix)
        for place in (folder, folder / PACKING_FOLDER):
            remove_abandoned_files(place)
        with suppress(OSError):
            (folder / PACKING_FOLDER).rmdir()


def refuse_overlap(source_url: str, destination_url: str) -> None:
    """Raise UsageError where the destination is inside the source."""
    if f"{destination_url}/".startswith(f"{source_url.rstrip('/')}/"):
        raise UsageError(
            f"The destination {destination_url} lies within the source {source_url}. Choose a "
            "folder beside it."
        )
    if destination_url.startswith("memory://"):
        raise UsageError("memory:// lives in one process; packing uses several. Use a folder.")


def _refuse_foreign(store: Store) -> None:
    first = next(store.list(), None)
    if first is not None:
        raise DatasetError(
            f"{store.url} is not empty: it holds {first.path}, which no packing of this source "
            f"wrote. Shards are named {shard_name(0)} and so on, beside {INDEX_NAME}; choose an "
            "empty destination."
        )


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
        recode: Changes members; must pickle.
        check: Decodes each unchanged member and raises BadSampleError where it cannot; must pickle.
            The manifest records that it ran, and readers may then rely on decodable files.

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
    what = json.dumps([table.source.listing, options_entry], sort_keys=True)
    plan = _plan(store, table, hashlib.sha256(what.encode()).hexdigest(), recode)
    files = 1 if table.masks is None else 2
    packed = plan.scale.packed_bytes(table.known_bytes())
    # In a tar each file has a header, and on average half a block of padding.
    sample_bytes = packed + files * (BLOCK_BYTES + BLOCK_BYTES // 2)
    bounds = shard_bounds(sample_bytes, options.shard_bytes)
    job = ShardPacker(
        source_url=table.url, destination_url=destination, recode=recode, check=check, key=plan.key
    )
    complete = _pack_shards(store, table, bounds, job, options, on_progress)
    on_progress(PackProgress(stage="indexing"))
    finished = _finished(store, len(bounds) - 1, complete=complete)
    summary = summarise(
        refuse_foreign_records(_parts(store, finished), plan.key, store.url), table.bad
    )
    try:
        check_bad_files(summary.bad, options.max_bad, table.url, complete=complete)
    except TooManyBadSamplesError as error:
        raise TooManyBadSamplesError(f"{error} {_delete_bad(store, finished)}") from None
    description = DatasetDescription(
        layout="tar", source=table.source, classes=table.classes, options=options_entry
    )
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        parts = partial(_parts, store, finished)
        manifest = assemble(store, summary, parts, description, Path(folder))
    remove_state(store)
    return PackReport(url=store.url, manifest=manifest)


def _plan(store: Store, table: SampleTable, key: str, recode: RecodeFunction | None) -> PackingPlan:
    plan = resume_plan(store, key)
    if plan is None:
        plan = PackingPlan(key=key, source_url=table.url, scale=measure_scale(table, recode))
        store.create(_PLAN_NAME, json.dumps(asdict(plan)).encode())
        # Read back in any case: the answer may be lost, or the server may ignore conditions; and
        # the plan to use may be that of a concurrent packing.
        plan = resume_plan(store, key) or plan
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


def _delete_bad(store: Store, finished: Sequence[int]) -> str:
    """Delete the records of shards without files that are bad; return what is to be done then."""
    try:
        for record in _parts(store, finished):
            if record.bad:  # the next packing makes the shard again
                store.delete(record_name(record.number))
    except DeniedError as error:
        return (
            "Corrected files need an empty destination: the records of the shards without them "
            f"cannot be deleted. {error}"
        )
    return _AFTER_BAD


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
