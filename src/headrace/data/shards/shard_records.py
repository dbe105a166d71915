"""The records of finished shards, and the index and manifest assembled from them.

A record is written beside the shards, after its shard; so an existing record means that its shard
is complete, and a packing that was killed resumes after the last one.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from headrace.core.errors import DatasetError, NoSpaceError, StorageError
from headrace.data.shards.index_rows import Kinds, MemberKind
from headrace.data.shards.index_writer import (
    IndexRowBuilder,
    checksum_of_file,
    digest_of,
    write_index,
)
from headrace.data.shards.manifest import (
    INDEX_NAME,
    MANIFEST_NAME,
    DatasetManifest,
    DatasetSource,
    Layout,
    MemberExtension,
    ShardEntry,
    fingerprint_of,
)
from headrace.data.shards.reports import BadFile
from headrace.data.storage import Store

_KEY = b"headrace"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """The record of one shard, or of one group of loose objects."""

    number: int  # its place in the order of the dataset
    name: str = ""  # the shard's path; "" for loose objects
    size_bytes: int  # for loose objects the sum of theirs
    num_members: int
    recoded: int = 0  # files that were changed while packing
    oriented: int = 0  # images with an EXIF orientation
    bad: tuple[BadFile, ...] = ()  # files left out
    key: str = ""  # of the packing that wrote it; "" where no other one could have
    digest: str  # of the rows; see `IndexRows.digest`
    kinds: Mapping[str, MemberKind]
    batch: pa.RecordBatch  # the rows

    @classmethod
    def build(cls, rows: IndexRowBuilder, *, number: int, name: str = "", size_bytes: int) -> Self:
        """Return the record of collected rows."""
        kinds, batch = rows.kinds(), rows.batch()
        return cls(
            number=number,
            name=name,
            size_bytes=size_bytes,
            num_members=rows.num_members,
            digest=digest_of(batch, kinds),
            kinds=kinds,
            batch=batch,
        )

    def to_bytes(self) -> bytes:
        """Return the record as an Arrow IPC stream."""
        stored = {each.name: getattr(self, each.name) for each in fields(self)}
        batch = stored.pop("batch")
        stored |= {"bad": [asdict(bad) for bad in self.bad], "kinds": dict(self.kinds)}
        schema = batch.schema.with_metadata({_KEY: json.dumps(stored).encode()})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes()

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, where: str) -> Self:
        """Read a record; raises DatasetError, naming `where`, if it is damaged."""
        try:
            with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
                stored: dict[str, Any] = json.loads((reader.schema.metadata or {})[_KEY])
                batch = reader.read_next_batch()
            bad = tuple(BadFile(**bad) for bad in stored.pop("bad"))
            record = cls(bad=bad, batch=batch, **stored)
        except (pa.ArrowInvalid, OSError, KeyError, TypeError, ValueError, StopIteration) as error:
            raise DatasetError(
                f"{where} is no record of a finished shard ({error}). Delete the destination and "
                "pack again."
            ) from None
        if digest_of(record.batch, record.kinds) != record.digest:
            raise DatasetError(f"{where} is damaged. Delete it and run the same command again.")
        return record


class ShardRecordSpool:
    """Shard records in order, in a temporary folder for its files alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def add(self, record: ShardRecord) -> None:
        """Append a record."""
        with local_disk_errors(self._folder):
            self._file(self._count).write_bytes(record.to_bytes())
        self._count += 1

    def parts(self) -> Iterator[ShardRecord]:
        """Yield all records."""
        for number in range(self._count):
            file = self._file(number)
            yield ShardRecord.from_bytes(file.read_bytes(), str(file))

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:06d}.arrow"


@contextmanager
def local_disk_errors(path: Path) -> Iterator[None]:
    """Raise a StorageError that names `path` where the temporary folder cannot be written."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        kind = NoSpaceError if error.errno in {errno.ENOSPC, errno.EDQUOT} else StorageError
        raise kind(
            f"{path} cannot be written ({error.strerror or error}). The index is put together "
            "there; set TMPDIR to a folder with room."
        ) from None


ShardRecords = Callable[[], Iterator[ShardRecord]]
"""Yields all records in order; called twice, so that their rows need not stay in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSummary:
    """The sums over all records, without their rows."""

    entries: tuple[ShardEntry, ...]  # of records with samples; their places are not set yet
    kinds: Kinds  # of all records, sorted
    num_members: int
    num_recoded: int
    num_oriented: int
    bad: tuple[BadFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetDescription:
    """The parts of a manifest that do not come from shard records; see `DatasetManifest`."""

    layout: Layout
    source: DatasetSource
    classes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    data_url: str = ""
    templates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by extension


def summarise(records: Iterable[ShardRecord], listed_bad: Sequence[BadFile] = ()) -> PackSummary:
    """Return the sums over records; `listed_bad` files were left out by the listing."""
    entries: list[ShardEntry] = []
    kinds: dict[str, MemberKind] = {}
    bad: list[BadFile] = list(listed_bad)
    num_members = num_recoded = num_oriented = 0
    for record in records:
        bad.extend(record.bad)
        if record.batch.num_rows == 0:
            continue
        kinds.update(record.kinds)
        num_members += record.num_members
        num_recoded += record.recoded
        num_oriented += record.oriented
        entries.append(
            ShardEntry(
                name=record.name,
                size_bytes=record.size_bytes,
                num_samples=record.batch.num_rows,
                digest=record.digest,
                index_start=0,
                index_bytes=0,
            )
        )
    return PackSummary(
        entries=tuple(entries),
        kinds=dict(sorted(kinds.items())),
        num_members=num_members,
        num_recoded=num_recoded,
        num_oriented=num_oriented,
        bad=tuple(bad),
    )


def assemble(
    store: Store,
    summary: PackSummary,
    records: ShardRecords,
    description: DatasetDescription,
    folder: Path,
) -> DatasetManifest:
    """Write the index, then the manifest; DatasetError: no sample is left.

    The index is put together in `folder`, a temporary one.
    """
    if not summary.entries:
        raise DatasetError(
            f"{description.source.url}: no sample is left, all {len(summary.bad)} were left out "
            "as bad."
        )
    fingerprint = fingerprint_of(description.layout, summary.entries)
    path = folder / INDEX_NAME
    batches = (record.batch for record in records() if record.batch.num_rows)
    with local_disk_errors(path):
        spans = write_index(path, batches, summary.kinds, fingerprint)
        index_bytes, index_crc32c = path.stat().st_size, checksum_of_file(path)
    store.put(INDEX_NAME, path)
    manifest = DatasetManifest(
        fingerprint=fingerprint,
        layout=description.layout,
        num_samples=sum(entry.num_samples for entry in summary.entries),
        num_members=summary.num_members,
        size_bytes=sum(entry.size_bytes for entry in summary.entries),
        extensions=tuple(
            MemberExtension(name=name, kind=kind, templates=description.templates.get(name, ()))
            for name, kind in summary.kinds.items()
        ),
        classes=description.classes,
        data_url=description.data_url,
        index_bytes=index_bytes,
        index_crc32c=index_crc32c,
        source=description.source,
        options=description.options,
        num_recoded=summary.num_recoded,
        num_oriented=summary.num_oriented,
        bad=summary.bad,
        shards=tuple(
            replace(entry, index_start=start, index_bytes=length)
            for entry, (start, length) in zip(summary.entries, spans, strict=True)
        ),
    )
    store.put(MANIFEST_NAME, manifest.to_json())
    return manifest
