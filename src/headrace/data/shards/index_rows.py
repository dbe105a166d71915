"""The columns of an index, and the rows of one record batch, read without pyarrow.

    key                                  the sample's name
    <extension>.offset, .size, .crc32c   a member in a shard ("range")
    <extension>.template, .size, .crc32c a loose object; template + key give its path ("object")
    <extension>.value                    an integer stored in the index itself ("value")

A sample without a member of some extension has that column's `absent` in the member's first
column. A record batch is an encapsulated message of Arrow's IPC format (columnar format,
"Serialization and Interprocess Communication"): a marker, the length of a flatbuffer with the
place of each column's bytes, the flatbuffer, and the bytes. Parsing these few fields by hand saves
every worker the 25 MB that pyarrow takes; writing uses pyarrow.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal, Self

import numpy as np

from headrace.core.lazy import small_sha256

MemberKind = Literal["range", "object", "value"]
ColumnCode = Literal["H", "i", "I", "q"]

LARGEST_MEMBER_BYTES = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexColumn:
    """One column of one member."""

    name: str  # after the extension and a dot
    type: Literal["int32", "int64", "uint16", "uint32"]  # Arrow's, by name
    code: ColumnCode  # the same type for `array` and `memoryview.cast`
    absent: int  # the value where the sample has no such member


_SIZE = IndexColumn(name="size", type="uint32", code="I", absent=0)
_CRC32C = IndexColumn(name="crc32c", type="uint32", code="I", absent=0)
_TEMPLATE = IndexColumn(name="template", type="uint16", code="H", absent=2**16 - 1)

COLUMNS: dict[MemberKind, tuple[IndexColumn, ...]] = {
    "range": (IndexColumn(name="offset", type="int64", code="q", absent=-1), _SIZE, _CRC32C),
    "object": (_TEMPLATE, _SIZE, _CRC32C),
    "value": (IndexColumn(name="value", type="int32", code="i", absent=-(2**31)),),
}

Kinds = Mapping[str, MemberKind]
"""Extension -> kind, in the order of the columns."""

FINGERPRINT = b"headrace.fingerprint"
"""The key of the dataset's fingerprint in the schema's metadata."""

_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3  # the union MessageHeader's third member
_HEADER_TYPE, _HEADER = 1, 2  # fields of the table Message
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3  # fields of the table RecordBatch
_WIDTH_BYTES: dict[ColumnCode, int] = {"H": 2, "i": 4, "I": 4, "q": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRows:
    """The rows of one record batch; its columns are views of the message."""

    count: int
    key_ends: memoryview[int]
    """int32[count + 1]: row r's key is text[key_ends[r]:key_ends[r + 1]], in UTF-8."""
    text: memoryview[int]  # the keys, one after another
    columns: tuple[tuple[memoryview[int], ...], ...]  # of each extension, in the index's order

    @classmethod
    def parse(cls, message: memoryview, kinds: Kinds) -> Self:
        """Parse a message whose columns are those of `kinds`, in this order; raises ValueError."""
        try:
            count, spans, body = _layout(message)
        except (struct.error, IndexError):
            raise ValueError("a damaged Arrow message: its tables lead out of it") from None
        codes = [column.code for kind in kinds.values() for column in COLUMNS[kind]]
        if len(spans) != 3 + 2 * len(codes):
            raise ValueError(f"an Arrow message of {len(spans)} buffers; other columns than these")
        ends = _cast(body, spans[1], "i", count + 1) if count else memoryview(bytes(4)).cast("i")
        text = body[spans[2][0] : spans[2][0] + spans[2][1]]
        key_ends = np.asarray(ends)
        if key_ends[0] < 0 or len(text) < key_ends[-1] or (key_ends[1:] < key_ends[:-1]).any():
            raise ValueError("a damaged Arrow message: its keys do not follow one another")
        data_spans = spans[4::2]  # [3::2] are the validity bitmaps
        values = (_cast(body, *each, count) for each in zip(data_spans, codes, strict=True))
        columns = tuple(tuple(islice(values, len(COLUMNS[kind]))) for kind in kinds.values())
        return cls(count=count, key_ends=ends, text=text, columns=columns)

    def digest(self, kinds: Kinds) -> str:
        """Return a hash of the rows, 32 hexadecimal digits.

        It depends on values alone, neither on Arrow's framing nor on columns of extensions that no
        row has, so that a shard's digest is known before the other shards are.
        """
        state = small_sha256()
        first, last = self.key_ends[0], self.key_ends[self.count]
        state.update((np.asarray(self.key_ends) - first).astype("<i4").tobytes())
        state.update(self.text[first:last])
        by_extension = dict(zip(kinds, self.columns, strict=True))
        for extension, kind in sorted(kinds.items()):
            columns = [np.asarray(values) for values in by_extension[extension]]
            if (columns[0] == COLUMNS[kind][0].absent).all():
                continue
            state.update(f"{extension}.{kind}".encode())
            for values in columns:
                state.update(values.tobytes())
        return state.hexdigest()[:32]


def _layout(message: memoryview) -> tuple[int, list[tuple[int, int]], memoryview]:
    """Return the number of rows, (offset, length) of each buffer, and the body with the buffers."""
    marker, metadata_bytes = struct.unpack_from("<II", message)
    if marker != _CONTINUATION:
        raise ValueError("not an Arrow message")
    metadata = message[8 : 8 + metadata_bytes]
    table = _indirect(metadata, 0)
    header_type = _field(metadata, table, _HEADER_TYPE)
    header = _field(metadata, table, _HEADER)
    if not header_type or not header or metadata[header_type] != _RECORD_BATCH:
        raise ValueError("an Arrow message that is no record batch")
    batch = _indirect(metadata, header)
    if _field(metadata, batch, _COMPRESSION):
        raise ValueError("a compressed Arrow message; the index holds uncompressed ones")
    length, buffers = _field(metadata, batch, _LENGTH), _field(metadata, batch, _BUFFERS)
    count = struct.unpack_from("<q", metadata, length)[0] if length else 0
    if not buffers or count < 0:
        raise ValueError("an Arrow message without buffers")
    vector = _indirect(metadata, buffers)
    (number,) = struct.unpack_from("<I", metadata, vector)
    spans = [struct.unpack_from("<qq", metadata, vector + 4 + 16 * each) for each in range(number)]
    body = message[8 + metadata_bytes :].cast("B")
    if any(min(span) < 0 or sum(span) > len(body) for span in spans):
        raise ValueError("a damaged Arrow message: its buffers lie outside it")
    return count, spans, body


def _indirect(metadata: memoryview, position: int) -> int:
    """Follow a flatbuffer's relative offset."""
    return position + int(struct.unpack_from("<I", metadata, position)[0])


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Return the position of a table's field in the flatbuffer, 0 where it has its default."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    if vtable < 0:
        raise ValueError("a damaged Arrow message: a table without a description")
    (vtable_bytes,) = struct.unpack_from("<H", metadata, vtable)
    if 4 + 2 * number >= vtable_bytes:
        return 0
    (offset,) = struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)
    return table + offset if offset else 0


def _cast(body: memoryview, span: tuple[int, int], code: ColumnCode, count: int) -> memoryview[int]:
    size_bytes = count * _WIDTH_BYTES[code]
    if span[1] < size_bytes:
        raise ValueError("a damaged Arrow message: a column is cut short")
    return body[span[0] : span[0] + size_bytes].cast(code)
