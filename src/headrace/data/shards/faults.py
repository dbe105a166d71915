"""What is wrong with a dataset, each thing by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FaultKind = Literal[
    "cut", "header", "trailing", "name", "type", "duplicate", "order", "size", "checksum",
    "missing", "extra", "index", "manifest", "unreadable",
]  # fmt: skip
"""Kinds of faults:

cut         an object ends before what it promises
header      a tar header is damaged
trailing    bytes after a tar's end
name        a member's name is refused
type        a link, device or other member that is no file
duplicate   one key holds two files of one extension, or two samples share a key
order       a sample's members do not lie together
size        an object or member has another size than the index says
checksum    a member's bytes differ from the index
missing     the index names what the dataset does not hold
extra       the dataset holds what the index does not name
index       the index does not fit the manifest
manifest    the manifest does not fit itself
unreadable  an object exists but cannot be read
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: Which sort; see FaultKind.
        where: The object's path below the dataset's URL.
        message: What is wrong, with the member's name and bytes where there are any.
    """

    kind: FaultKind
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFile:
    """A file that is no sample.

    Attributes:
        file: Its path below the source's URL, or its URL.
        reason: What is wrong with it, one sentence or more.
    """

    file: str
    reason: str


def list_faults(faults: Sequence[Fault], limit: int = 20) -> str:
    """Return faults as lines for an error's message: the first `limit`, and how many more."""
    lines = [f"  {fault}" for fault in faults[:limit]]
    if len(faults) > limit:
        lines.append(f"  and {len(faults) - limit} more")
    return "\n".join(lines)
