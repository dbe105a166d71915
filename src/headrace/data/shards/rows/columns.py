"""The columns of the index: one row a sample, fixed-width columns for each member.

    key                                  the sample's name
    <extension>.offset, .size, .crc32c   a member in a shard ("range")
    <extension>.template, .size, .crc32c a loose object; template + key give its path ("object")
    <extension>.value                    a whole number held by the index itself ("value")

A sample without a member of some extension holds `ABSENT` in that member's first column.

Nothing that a reader imports loads pyarrow: it would take 25 MB in every worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

MemberKind = Literal["range", "object", "value"]
ColumnCode = Literal["H", "i", "I", "q"]

LARGEST_MEMBER_BYTES = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of one member.

    Attributes:
        name: What follows the extension and a dot.
        type: Its Arrow type, by name.
        code: The same type for `array` and `memoryview.cast`.
        absent: The value where the sample has no such member.
    """

    name: str
    type: Literal["int32", "int64", "uint16", "uint32"]
    code: ColumnCode
    absent: int


_SIZE = Column(name="size", type="uint32", code="I", absent=0)
_CRC32C = Column(name="crc32c", type="uint32", code="I", absent=0)

COLUMNS: dict[MemberKind, tuple[Column, ...]] = {
    "range": (Column(name="offset", type="int64", code="q", absent=-1), _SIZE, _CRC32C),
    "object": (
        Column(name="template", type="uint16", code="H", absent=2**16 - 1),
        _SIZE,
        _CRC32C,
    ),
    "value": (Column(name="value", type="int32", code="i", absent=-(2**31)),),
}

Kinds = Mapping[str, MemberKind]
"""Extension -> kind, in the order of the columns."""
