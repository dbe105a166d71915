"""The columns of the index: one row a sample, fixed-width columns for each member.

    key                                  the sample's name
    <extension>.offset, .size, .crc32c   a member in a shard ("range")
    <extension>.template, .size, .crc32c a loose object; template + key give its path ("object")
    <extension>.value                    a whole number held by the index itself ("value")

A sample without a member of some extension holds `ABSENT` in that member's first column.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.data.shards.rows.arrow_arrays import numbers, strings

MemberKind = Literal["range", "object", "value"]
ColumnCode = Literal["B", "H", "i", "I", "q"]

LARGEST_MEMBER_BYTES = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of one member.

    Attributes:
        name: What follows the extension and a dot.
        type: Its Arrow type.
        code: The same type for `array` and `memoryview.cast`.
        absent: The value where the sample has no such member.
    """

    name: str
    type: pa.DataType
    code: ColumnCode
    absent: int


_SIZE = Column(name="size", type=pa.uint32(), code="I", absent=0)
_CRC32C = Column(name="crc32c", type=pa.uint32(), code="I", absent=0)

COLUMNS: dict[MemberKind, tuple[Column, ...]] = {
    "range": (Column(name="offset", type=pa.int64(), code="q", absent=-1), _SIZE, _CRC32C),
    "object": (
        Column(name="template", type=pa.uint16(), code="H", absent=2**16 - 1),
        _SIZE,
        _CRC32C,
    ),
    "value": (Column(name="value", type=pa.int32(), code="i", absent=-(2**31)),),
}

Kinds = Mapping[str, MemberKind]
"""Extension -> kind, in the order of the columns."""


def schema_of(kinds: Kinds) -> pa.Schema:
    """Return the index's schema; no column holds nulls."""
    fields = [
        pa.field(f"{extension}.{column.name}", column.type, nullable=False)
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
                arrays.append(numbers(np.frombuffer(values, values.typecode), column.type))
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
            arrays.append(batch.column(name) if name in have else numbers(absent, column.type))
    return pa.record_batch(arrays, schema=schema)


def digest(batch: pa.RecordBatch, kinds: Kinds) -> str:
    """Return a hash of a batch's rows, 32 hexadecimal digits.

    It depends on values alone: neither on Arrow's framing nor on columns of extensions that no
    row has, so that a shard's digest is known before the other shards are.
    """
    state = hashlib.sha256()
    for part in _string_buffers(batch.column("key")):
        state.update(part)
    for extension, kind in sorted(kinds.items()):
        columns = [
            _values(batch.column(f"{extension}.{column.name}"), column.code)
            for column in COLUMNS[kind]
        ]
        if (columns[0] == COLUMNS[kind][0].absent).all():
            continue
        state.update(f"{extension}.{kind}".encode())
        for values in columns:
            state.update(values.tobytes())
    return state.hexdigest()[:32]


def _string_buffers(strings: pa.Array[Any]) -> tuple[bytes, bytes]:
    """Return offsets from zero (little-endian int32) and text of a string array."""
    _, offset_buffer, data_buffer = strings.buffers()
    if offset_buffer is None or len(strings) == 0:
        return bytes(4), b""
    offsets = np.frombuffer(memoryview(offset_buffer), np.int32)
    offsets = offsets[strings.offset : strings.offset + len(strings) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    text = memoryview(data_buffer)[first:last].tobytes() if data_buffer is not None else b""
    return (offsets - first).astype("<i4").tobytes(), text


def _values(column: pa.Array[Any], code: ColumnCode) -> NDArray[Any]:
    buffer = column.buffers()[1]
    if buffer is None or len(column) == 0:
        return np.empty(0, dtype=code)
    return np.frombuffer(memoryview(buffer), code)[column.offset : column.offset + len(column)]


def _absent(kind: MemberKind) -> tuple[int, ...]:
    return tuple(column.absent for column in COLUMNS[kind])
