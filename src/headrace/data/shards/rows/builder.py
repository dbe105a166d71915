"""Rows of the index collected while packing, and made into Arrow record batches."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow_arrays import numbers, strings
from headrace.data.shards.rows.columns import COLUMNS, Column, Kinds, MemberKind
from headrace.data.shards.rows.message import Rows


def schema_of(kinds: Kinds) -> pa.Schema:
    """Return the index's schema; no column holds nulls."""
    fields = [
        pa.field(f"{extension}.{column.name}", _arrow_type(column), nullable=False)
        for extension, kind in kinds.items()
        for column in COLUMNS[kind]
    ]
    return pa.schema([pa.field("key", pa.string(), nullable=False), *fields])


class RowBuilder:
    """Collects the rows of one record batch; extensions may appear as they come."""

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._kinds: dict[str, MemberKind] = {}
        self._columns: dict[str, tuple[array[int], ...]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def num_members(self) -> int:
        """How many members the rows have in all."""
        return sum(
            len(columns[0]) - columns[0].count(COLUMNS[self._kinds[extension]][0].absent)
            for extension, columns in self._columns.items()
        )

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
            kind = self._kinds[extension]
            values = members[extension][1] if extension in members else _absent(kind)
            for column, value in zip(columns, values, strict=True):
                column.append(value)

    def items(self) -> Iterator[tuple[str, dict[str, tuple[int, ...]]]]:
        """Yield each sample's key and, for each member it has, the values of its columns."""
        absent = {name: COLUMNS[kind][0].absent for name, kind in self._kinds.items()}
        for row, key in enumerate(self._keys):
            yield (
                key,
                {
                    extension: tuple(column[row] for column in columns)
                    for extension, columns in self._columns.items()
                    if columns[0][row] != absent[extension]
                },
            )

    def kinds(self) -> dict[str, MemberKind]:
        """Return the extensions that appeared, sorted, with their kinds."""
        return dict(sorted(self._kinds.items()))

    def batch(self) -> pa.RecordBatch:
        """Return the rows as one record batch, extensions sorted."""
        kinds = self.kinds()
        arrays: list[pa.Array[Any]] = [strings(self._keys)]
        for extension, kind in kinds.items():
            for column, values in zip(COLUMNS[kind], self._columns[extension], strict=True):
                arrays.append(numbers(np.frombuffer(values, values.typecode), _arrow_type(column)))
        return pa.record_batch(arrays, schema=schema_of(kinds))


def align(batch: pa.RecordBatch, kinds: Kinds) -> pa.RecordBatch:
    """Return the batch with columns for all of `kinds`, absent where it had none."""
    schema = schema_of(kinds)
    have = set(batch.schema.names)
    arrays: list[pa.Array[Any]] = [batch.column("key")]
    for extension, kind in kinds.items():
        for column in COLUMNS[kind]:
            name = f"{extension}.{column.name}"
            absent = np.full(batch.num_rows, column.absent, dtype=column.code)
            arrays.append(
                batch.column(name) if name in have else numbers(absent, _arrow_type(column))
            )
    return pa.record_batch(arrays, schema=schema)


def rows_of(batch: pa.RecordBatch, kinds: Kinds) -> Rows:
    """Return the rows of a batch whose columns are those of `kinds`, in this order."""
    return Rows.parse(memoryview(batch.serialize()), kinds)


def digest_of(batch: pa.RecordBatch, kinds: Kinds) -> str:
    """Return the hash of a batch's rows; see `Rows.digest`."""
    return rows_of(batch, kinds).digest(kinds)


def _arrow_type(column: Column) -> pa.DataType:
    kind: pa.DataType = getattr(pa, column.type)()
    return kind


def _absent(kind: MemberKind) -> tuple[int, ...]:
    return tuple(column.absent for column in COLUMNS[kind])
