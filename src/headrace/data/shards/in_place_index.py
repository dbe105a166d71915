"""The index and manifest of existing tars or loose objects, which stay where they are.

Nothing is copied; every byte is read once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from headrace.core.errors import BadSampleError, DatasetError, NotFoundError, UsageError
from headrace.data.shards.index_rows import MemberKind
from headrace.data.shards.index_writer import IndexRowBuilder
from headrace.data.shards.manifest import INDEX_NAME, MANIFEST_NAME
from headrace.data.shards.members import checksum, extension_of
from headrace.data.shards.pack import PackReport
from headrace.data.shards.reports import (
    BadFile,
    Fault,
    PackProgress,
    ProgressCallback,
    ProgressTally,
    check_bad_files,
    list_faults,
    report_listing,
)
from headrace.data.shards.shard_packer import PACKING_FOLDER, SourceReader, collect_bad_file
from headrace.data.shards.shard_records import (
    DatasetDescription,
    ShardRecord,
    ShardRecordSpool,
    assemble,
    summarise,
)
from headrace.data.shards.sources.sample_table import (
    IMAGE_EXTENSIONS,
    SampleTable,
    SourceListing,
    samples_of,
    texts,
)
from headrace.data.shards.sources.source_kinds import SourceOptions, list_source
from headrace.data.shards.sources.table_files import TABLE_SUFFIXES
from headrace.data.shards.tar import check_size, index_tar
from headrace.data.shards.task_pool import map_in_order, wait_for_result
from headrace.data.storage import Store, open_store

CONCURRENT_TARS = 4


def index_tars(
    store: Store,
    target_url: str,
    spool: ShardRecordSpool,
    on_progress: ProgressCallback,
    classes: tuple[str, ...] = (),
) -> DatasetDescription:
    """Read all tars of a store into `spool`, by path; DatasetError names every fault in them."""
    listing, tars = SourceListing(), []
    for info in store.list():
        if info.path.endswith(".tar"):
            tars.append(info)
            listing.add(info)
        else:
            listing.ignore(info.path)
    tally = ProgressTally(on_progress, "reading", of_samples=0)
    faults: list[Fault] = []
    for number, tar in enumerate(
        map_in_order(
            lambda info: index_tar(store, info.path, info.size_bytes), tars, CONCURRENT_TARS
        )
    ):
        faults.extend(tar.faults)
        for name in tar.ignored:
            listing.ignore(f"{tar.path}:{name}")
        spool.add(
            ShardRecord.build(tar.rows, number=number, name=tar.path, size_bytes=tar.size_bytes)
        )
        tally.add(len(tar.rows), tar.size_bytes, 0)
    if faults:
        raise DatasetError(
            f"{store.url}: {len(faults)} faults in its tars:\n{list_faults(faults)}\n"
            "Write those tars again, or move them away, then index again."
        )
    return DatasetDescription(
        layout="tar",
        classes=classes,
        data_url="" if store.url == target_url else store.url,
        source=listing.source("tars", store.url),
    )


GROUP_SAMPLES = 8192
"""Samples of one record batch: about 0.5 MB, one request where the index is read by range."""


def index_objects(
    table: SampleTable, target_url: str, spool: ShardRecordSpool, on_progress: ProgressCallback
) -> DatasetDescription:
    """Read all objects of a table into `spool`; unreadable and empty ones are recorded as bad."""
    tally = ProgressTally(on_progress, "reading", of_samples=len(table))
    templates: dict[str, tuple[str, ...]] = {}
    with closing(SourceReader(table.url)) as reader:
        for number, first in enumerate(range(0, len(table), GROUP_SAMPLES)):
            rows = np.arange(first, min(first + GROUP_SAMPLES, len(table)), dtype=np.int64)
            spool.add(_read_group(reader, table.take(rows), number, tally, templates))
    return DatasetDescription(
        layout="objects",
        source=table.source,
        classes=table.classes,
        data_url="" if table.url == target_url else table.url,
        templates=templates,
    )


def _read_group(
    reader: SourceReader,
    table: SampleTable,
    number: int,
    tally: ProgressTally,
    templates: dict[str, tuple[str, ...]],
) -> ShardRecord:
    """Read the samples of one record batch; add the templates of their extensions."""
    rows, size_bytes = IndexRowBuilder(), 0
    bad: list[BadFile] = []
    columns = [table.images] if table.masks is None else [table.images, table.masks]
    stems = texts(table.stems)
    for row, (sample, contents) in enumerate(reader.read(samples_of(table))):
        members: dict[str, tuple[MemberKind, Sequence[int]]] = {}
        read_bytes = 0
        for file, column, content in zip(sample.files, columns, contents, strict=True):
            with collect_bad_file(file.path, bad):
                data = wait_for_result(content)
                if not data:
                    raise BadSampleError("The object is empty: 0 bytes.")
                check_size(data)
                read_bytes += len(data)
                templates[file.extension] = column.templates
                ids = column.template_ids
                place = 0 if ids is None else int(ids[row]), len(data), checksum(data)
                members[file.extension] = "object", place
        is_bad = len(members) < len(sample.files)
        tally.add(1, read_bytes, int(is_bad))
        if is_bad:
            continue
        size_bytes += read_bytes
        if table.labels is not None:
            members["cls"] = "value", (int(table.labels[row]),)
        rows.add(stems[row], members)  # the stem itself: the path is derived from it
    return replace(ShardRecord.build(rows, number=number, size_bytes=size_bytes), bad=tuple(bad))


_PROBE_NAME = ".headrace-write-test"


def index_in_place(
    url: str,
    *,
    destination: str | None = None,
    source: SourceOptions | None = None,
    max_bad: int = 0,
    progress: ProgressCallback | None = None,
) -> PackReport:
    """Make a dataset of the files at `url` by writing an index and a manifest.

    WebDataset tars become the shards. Each loose object becomes a shard of its own; class folders
    and pairs are recognised as in packing.

    Args:
        destination: Folder of index and manifest, if not the folder itself (which may be someone
            else's, and read-only).
        source: How to read loose objects.
        max_bad: Number of unreadable or empty objects that may be left out.

    Raises:
        DatasetError: Nothing to index, a dataset exists already, or tars have faults: all are
            named.
        TooManyBadSamplesError: More unreadable objects than `max_bad`; all are named.
    """
    on_progress = progress or (lambda _: None)
    options = source or SourceOptions()
    store, target = open_store(url), open_store(destination or url)
    if store.url.lower().endswith(TABLE_SUFFIXES):
        raise UsageError(f"{store.url} is a table. Pack it: `headrace data pack`.")
    holds_tars = _holds_tars(store)
    _refuse_used(target)
    on_listed = report_listing(on_progress)
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        spool = ShardRecordSpool(Path(folder))
        if options.image_glob is None and holds_tars:
            if options.split is not None:
                raise UsageError(f"{store.url} holds tars: give the split's own URL, not --split.")
            description = index_tars(store, target.url, spool, on_progress, options.classes)
        else:
            description = index_objects(
                list_source(url, options, on_listed), target.url, spool, on_progress
            )
        summary = summarise(spool.parts())
        check_bad_files(summary.bad, max_bad, store.url, complete=True)
        on_progress(PackProgress(stage="indexing"))
        manifest = assemble(target, summary, spool.parts, description)
    return PackReport(url=target.url, manifest=manifest)


def _refuse_used(target: Store) -> None:
    """Refuse a folder that holds a dataset, or is not writable, before hours of reading."""
    plan_name = f"{PACKING_FOLDER}/plan.json"
    for name, problem in {
        MANIFEST_NAME: f"a dataset already ({MANIFEST_NAME}). Delete {MANIFEST_NAME} and "
        f"{INDEX_NAME} there to index it anew, or choose another place with --to.",
        plan_name: f"an unfinished packing ({plan_name}). Finish it by running its `headrace data "
        "pack` again.",
    }.items():
        with suppress(NotFoundError):
            target.head(name)
            raise DatasetError(f"{target.url} holds {problem}")
    target.put(_PROBE_NAME, b"")
    target.delete(_PROBE_NAME)


def _holds_tars(store: Store) -> bool:
    """Return whether the first tar or image is a tar; raises DatasetError for an empty store."""
    found = store.list()
    first = next(found, None)
    if first is None:
        raise DatasetError(f"{store.url} holds nothing, or does not exist. Check the URL.")
    for info in chain([first], found):
        if info.path.endswith(".tar"):
            return True
        if extension_of(info.path) in IMAGE_EXTENSIONS:
            return False
    return False
