"""The rows of an index as they are collected, and index.arrow: an uncompressed Arrow IPC file."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa

from headrace.core.arrow_arrays import numbers, strings
from headrace.data.shards.index_rows import (
    COLUMNS,
    FINGERPRINT,
    IndexColumn,
    IndexRows,
    Kinds,
    MemberKind,
)
from headrace.data.storage import pieces_of


def schema_of(kinds: Kinds) -> pa.Schema:
    """Return the index's schema; no column holds nulls."""
    fields = [
        pa.field(name, _arrow_type(column), nullable=False) for name, column in _columns(kinds)
    ]
    return pa.schema([pa.field("key", pa.string(), nullable=False), *fields])


def _columns(kinds: Kinds) -> Iterator[tuple[str, IndexColumn]]:
    for extension, kind in kinds.items():
        for column in COLUMNS[kind]:
            yield f"{extension}.{column.name}", column


class IndexRowBuilder:
    """Collects the rows of one record batch; extensions may appear at any row."""

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._kinds: dict[str, MemberKind] = {}
        self._columns: dict[str, tuple[array[int], ...]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def num_members(self) -> int:
        """The number of members of all rows."""
        return sum(
            len(columns[0]) - columns[0].count(COLUMNS[self._kinds[extension]][0].absent)
            for extension, columns in self._columns.items()
        )

    @property
    def num_extensions(self) -> int:
        """The number of extensions that occurred."""
        return len(self._columns)

    def add(self, key: str, members: Mapping[str, tuple[MemberKind, Sequence[int]]]) -> None:
        """Add a sample: extension -> kind and the values of that kind's columns."""
        for extension, (kind, _) in members.items():
            if extension not in self._columns:
                self._kinds[extension] = kind
                self._columns[extension] = tuple(
                    array(column.code, [column.absent]) * len(self._keys)
                    for column in COLUMNS[kind]
                )
        self._keys.append(key)
        for extension, columns in self._columns.items():
            absent = [column.absent for column in COLUMNS[self._kinds[extension]]]
            values = members[extension][1] if extension in members else absent
            for column, value in zip(columns, values, strict=True):
                column.append(value)

    def items(self) -> Iterator[tuple[str, dict[str, tuple[int, ...]]]]:
        """Yield each sample's key and, for each of its members, the values of its columns."""
        absent = {name: COLUMNS[kind][0].absent for name, kind in self._kinds.items()}
        for row, key in enumerate(self._keys):
            members = {
                extension: tuple(column[row] for column in columns)
                for extension, columns in self._columns.items()
                if columns[0][row] != absent[extension]
            }
            yield key, members

    def kinds(self) -> dict[str, MemberKind]:
        """Return the extensions that occurred, sorted, with their kinds."""
        return dict(sorted(self._kinds.items()))

    def batch(self) -> pa.RecordBatch:
        """Return the rows as one record batch, extensions sorted."""
        kinds = self.kinds()
        arrays: list[pa.Array[Any]] = [strings(self._keys)]
        for extension, kind in kinds.items():
            for column, values in zip(COLUMNS[kind], self._columns[extension], strict=True):
                arrays.append(numbers(np.frombuffer(values, values.typecode), _arrow_type(column)))
        return pa.record_batch(arrays, schema=schema_of(kinds))


def align_columns(batch: pa.RecordBatch, kinds: Kinds) -> pa.RecordBatch:
    """Return the batch with columns for all of `kinds`, filled with `absent` where it had none."""
    have = set(batch.schema.names)
    arrays: list[pa.Array[Any]] = [batch.column("key")]
    for name, column in _columns(kinds):
        absent = np.full(batch.num_rows, column.absent, dtype=column.code)
        arrays.append(batch.column(name) if name in have else numbers(absent, _arrow_type(column)))
    return pa.record_batch(arrays, schema=schema_of(kinds))


def rows_of(batch: pa.RecordBatch, kinds: Kinds) -> IndexRows:
    """Return the rows of a batch whose columns are those of `kinds`, in this order."""
    return IndexRows.parse(memoryview(batch.serialize()), kinds)


def digest_of(batch: pa.RecordBatch, kinds: Kinds) -> str:
    """Return the hash of a batch's rows; see `IndexRows.digest`."""
    return rows_of(batch, kinds).digest(kinds)


def _arrow_type(column: IndexColumn) -> pa.DataType:
    kind: pa.DataType = getattr(pa, column.type)()
    return kind


_MAGIC_BYTES = 8  # "ARROW1" and two zero bytes come before the schema


def write_index(
    path: Path, batches: Iterable[pa.RecordBatch], kinds: Kinds, fingerprint: str
) -> list[tuple[int, int]]:
    """Write an index to a new local file; return start and length of each batch's message.

    `batches` are one a shard, in order; members of `kinds` that a batch lacks are filled in. The
    fingerprint is stored in the file, to distinguish it from another dataset's.
    """
    schema = schema_of(kinds).with_metadata({FINGERPRINT: fingerprint.encode()})
    # Batches are read by the position of their message, without the file's footer.
    position = _MAGIC_BYTES + len(schema.serialize())
    spans = []
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(align_columns(batch, kinds))
            spans.append((position, sink.tell() - position))
            position = sink.tell()
    return spans


def checksum_of_file(path: Path) -> int:
    """Return the CRC-32C of a file's bytes."""
    return int(reduce(google_crc32c.extend, pieces_of(path), 0))
