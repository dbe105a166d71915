"""The index and manifest of existing tars or loose objects, which stay where they are.

Nothing is copied; every byte is read once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from headrace.core.errors import (
    BadSampleError,
    DatasetError,
    DeniedError,
    NotFoundError,
    UsageError,
)
from headrace.data.shards.data_files import (
    TarsAndImages,
    is_compressed_tar,
    is_image,
    is_system_path,
    is_tar,
    may_hold_images,
)
from headrace.data.shards.index_rows import MemberKind
from headrace.data.shards.index_writer import IndexRowBuilder
from headrace.data.shards.manifest import INDEX_NAME, MANIFEST_NAME
from headrace.data.shards.members import checksum
from headrace.data.shards.pack import PackReport
from headrace.data.shards.reports import (
    BadFile,
    Fault,
    PackProgress,
    ProgressCallback,
    ProgressTally,
    check_bad_files,
    report_listing,
)
from headrace.data.shards.shard_index import relative_data_url
from headrace.data.shards.shard_packer import (
    PACKING_FOLDER,
    SourceReader,
    check_pair,
    collect_bad_file,
    is_oriented,
)
from headrace.data.shards.shard_records import (
    DatasetDescription,
    ShardRecord,
    ShardRecordSpool,
    assemble,
    summarise,
)
from headrace.data.shards.sources.sample_table import (
    SampleTable,
    SourceListing,
    list_files,
    samples_of,
    texts,
)
from headrace.data.shards.sources.source_kinds import (
    CITYSCAPES_FOLDERS,
    SourceOptions,
    list_source,
    pair_globs,
    refuse_file,
)
from headrace.data.shards.sources.table_files import TABLE_SUFFIXES
from headrace.data.shards.sources.tree_roles import is_of_split, refuse_mixed_splits
from headrace.data.shards.tar import check_size
from headrace.data.shards.tar_index import TarIndex, index_tar, is_mostly_absent, too_many_kinds
from headrace.data.shards.task_pool import map_in_order, wait_for_result
from headrace.data.storage import ObjectInfo, Store, open_store

CONCURRENT_TARS = 4
SPLIT = "split"
"""The option of a dataset that was made of the tars of one split alone."""


def index_tars(
    store: Store,
    target_url: str,
    spool: ShardRecordSpool,
    on_progress: ProgressCallback,
    options: SourceOptions,
) -> DatasetDescription:
    """Read all tars of a store, or of a split, into `spool`, by path.

    DatasetError names every fault in them; or they are of several splits, or none of the one.
    """
    listing, tars, split = SourceListing(store.url), [], options.split
    for info in list_files(store, lambda _: None, listing.ignored):
        is_lost = info.unreadable and may_hold_images(info)  # such as a folder of tars
        is_data = is_tar(info.path) or is_compressed_tar(info.path) or is_lost
        if is_data and (split is None or is_of_split(info.path, split)):
            tars.append(info)
            listing.add(info)
        else:
            listing.ignored.add(info.path, system=False)
    if split is None:
        refuse_mixed_splits([info.path for info in tars], store.url)
    elif not tars:
        raise DatasetError(
            f"{store.url} holds no tar of the split {split!r}: none has the word in its name or "
            "lies in a folder of this name."
        )
    kinds: set[str] = set()
    num_samples = num_members = 0
    tally = ProgressTally(on_progress, "reading", of_samples=0)
    for number, tar in enumerate(map_in_order(partial(_read_tar, store), tars, CONCURRENT_TARS)):
        bad = tuple(BadFile(file=fault.where, reason=fault.message) for fault in tar.faults)
        listing.ignored.add_all(tar.ignored, f"{tar.path}:")
        rows = tar.whole_rows()
        record = ShardRecord.build(rows, number=number, name=tar.path, size_bytes=tar.size_bytes)
        spool.add(replace(record, bad=bad, oriented=tar.oriented))
        tally.add(len(rows), tar.size_bytes, len(bad))
        kinds |= record.kinds.keys()
        num_samples, num_members = num_samples + len(rows), num_members + record.num_members
        if is_mostly_absent(num_samples * len(kinds), num_members):
            raise DatasetError(f"{store.url}: {too_many_kinds(num_samples, len(kinds))}")
    if kinds and all(is_tar(f".{kind}") for kind in kinds):
        raise DatasetError(
            f"{store.url}: the tars hold tars and no other files, such as those of ImageNet's "
            "classes. Unpack the outer ones, then index or unpack those within."
        )
    return DatasetDescription(
        layout="tar",
        classes=options.classes,
        data_url=relative_data_url(store.url, target_url),
        source=listing.source("tars"),
        options={} if split is None else {SPLIT: split},
    )


def _read_tar(store: Store, info: ObjectInfo) -> TarIndex:
    """Read a tar; what it has that is no sample is in its faults, also if it cannot be read."""
    bad: list[BadFile] = []
    if info.unreadable:
        bad.append(BadFile(file=info.path, reason=info.unreadable))
    else:
        with collect_bad_file(info.path, bad):
            return without_empty_images(index_tar(store, info.path, info.size_bytes))
    faults = [Fault("unreadable", info.path, each.reason) for each in bad]
    return TarIndex(path=info.path, size_bytes=info.size_bytes, faults=faults)


def without_empty_images(tar: TarIndex) -> TarIndex:
    """Return a tar with a fault for each sample that has an empty image."""
    for key, members in tar.rows.items():
        for extension, (_, size_bytes, _) in members.items():
            if size_bytes == 0 and is_image(f"x.{extension}"):
                message = f"{key}.{extension} is empty: 0 bytes."
                tar.faults.append(Fault("size", tar.path, message))
                tar.left_out.add(key)
    return tar


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
        data_url=relative_data_url(table.url, target_url),
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
    rows, size_bytes, oriented = IndexRowBuilder(), 0, 0
    bad: list[BadFile] = []
    columns = [table.images] if table.masks is None else [table.images, table.masks]
    stems = texts(table.stems)
    for row, (sample, contents) in enumerate(reader.read(samples_of(table))):
        members: dict[str, tuple[MemberKind, Sequence[int]]] = {}
        read: list[bytes] = []
        known_bad = len(bad)
        for file, column, content in zip(sample.files, columns, contents, strict=True):
            with collect_bad_file(file.path, bad):
                data = wait_for_result(content)
                if not data:
                    raise BadSampleError("The object is empty: 0 bytes.")
                check_size(data)
                read.append(data)
                templates[file.extension] = column.templates
                ids = column.template_ids
                place = 0 if ids is None else int(ids[row]), len(data), checksum(data)
                members[file.extension] = "object", place
        if len(members) == len(sample.files):
            with collect_bad_file(sample.files[0].path, bad):
                check_pair(sample.files, read)
        read_bytes, is_bad = sum(map(len, read)), len(bad) > known_bad
        tally.add(1, read_bytes, int(is_bad))
        if is_bad:
            continue
        oriented += sum(map(is_oriented, sample.files, read))
        size_bytes += read_bytes
        if table.labels is not None:
            members["cls"] = "value", (int(table.labels[row]),)
        rows.add(stems[row], members)  # the stem itself: the path is derived from it
    record = ShardRecord.build(rows, number=number, size_bytes=size_bytes)
    return replace(record, bad=tuple(bad), oriented=oriented)


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
        max_bad: Number of unreadable or empty objects, or faults of tars, that may be left out; of
            a tar the samples with a fault are.

    Raises:
        DatasetError: Nothing to index, or a dataset exists already.
        TooManyBadSamplesError: More unreadable objects or faults than `max_bad`; all are named.
    """
    on_progress = progress or (lambda _: None)
    options = source or SourceOptions()
    store, target = open_store(url), open_store(url if destination is None else destination)
    if store.url.lower().endswith(TABLE_SUFFIXES):
        raise UsageError(f"{store.url} is a table. Pack it: `headrace data pack`.")
    tars_are_data = _tars_are_data(store, url, options)
    _refuse_used(target)
    on_listed = report_listing(on_progress)
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        spool = ShardRecordSpool(Path(folder))
        listed_bad: tuple[BadFile, ...] = ()
        if tars_are_data:
            description = index_tars(store, target.url, spool, on_progress, options)
        else:
            table = list_source(url, options, on_listed)
            if table.source.kind == "table":
                raise UsageError(f"{store.url} is a table. Pack it: `headrace data pack`.")
            listed_bad = table.bad
            description = index_objects(table, target.url, spool, on_progress)
        summary = summarise(spool.parts(), listed_bad)
        check_bad_files(summary.bad, max_bad, store.url, complete=True)
        on_progress(PackProgress(stage="indexing"))
        manifest = assemble(target, summary, spool.parts, description, Path(folder))
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
    with suppress(DeniedError):  # who may write need not be one who may delete
        target.delete(_PROBE_NAME)


def _tars_are_data(store: Store, url: str, options: SourceOptions) -> bool:
    """Return whether the data are tars, perhaps with pictures beside them.

    Beside pairs, of patterns that are given or Cityscapes', tars are ignored, as in packing.
    DatasetError: the store is empty, or a file, or holds tars and, elsewhere, images.
    """
    found, is_empty, has_trees = TarsAndImages(), True, False
    for info in store.list_entries():
        if info.is_folder and not info.unreadable:
            continue
        is_empty = False
        if not is_system_path(info.path):
            found.add(info.path)
            # Trees of tars alone are shards.
            has_trees |= info.path.startswith(_CITYSCAPES_TREES) and is_image(info.path)
    if is_empty:
        refuse_file(url)
        raise DatasetError(f"{store.url} holds nothing, or does not exist. Check the URL.")
    if not found.num_tars or options.image_glob is not None:
        return False
    if has_trees and pair_globs(store, options) is not None:
        return False
    if found.tars_are_data() is None:
        apart, first = found.apart()
        raise DatasetError(
            f"{store.url} holds {found.described()}, of which {apart} are no previews beside tars, "
            f"such as {first}: either may be the data. Index the folder of the one or of the other "
            "by its own URL, or move them apart."
        )
    return True


_CITYSCAPES_TREES = tuple(f"{folder}/" for folder in CITYSCAPES_FOLDERS)
