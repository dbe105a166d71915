"""The samples of one shard, by their row in the index."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from headrace.data.shards.globs import Glob
from headrace.data.shards.manifest import Extension
from headrace.data.shards.members import Member, checksum
from headrace.data.shards.rows.columns import COLUMNS
from headrace.data.shards.rows.message import Rows


class IndexView:
    """Rows of one shard.

    Args:
        rows: The rows; their memory stays in use as long as the view does.
        extensions: The dataset's kinds of members.
        globs: For each extension, its templates.
        path: The shard's path; "" for loose objects.
    """

    __slots__ = ("_key_ends", "_keys", "_members", "_path")

    def __init__(
        self,
        rows: Rows,
        extensions: Sequence[Extension],
        globs: Sequence[Sequence[Glob]],
        path: str,
    ) -> None:
        self._key_ends = rows.key_ends
        self._keys = rows.text
        self._path = path
        self._members = tuple(
            (extension.name, extension.kind, columns, COLUMNS[extension.kind][0].absent, templates)
            for extension, columns, templates in zip(extensions, rows.columns, globs, strict=True)
        )

    def key(self, row: int) -> str:
        """Return a row's key."""
        return str(self._keys[self._key_ends[row] : self._key_ends[row + 1]], "utf-8")

    def find(self, key: str) -> int | None:
        """Return the row with this key, or None."""
        wanted = key.encode()
        text = self._keys.tobytes()
        start = text.find(wanted)
        while start >= 0:
            row = _row_that_starts_at(self._key_ends, start)
            if row is not None and self._key_ends[row + 1] == start + len(wanted):
                return row
            start = text.find(wanted, start + 1)
        return None

    def members(self, row: int, key: str) -> tuple[Member, ...]:
        """Return a row's members."""
        members = []
        for name, kind, columns, absent, templates in self._members:
            first = columns[0][row]
            if first == absent:
                continue
            if kind == "range":
                members.append(Member(name, self._path, first, columns[1][row], columns[2][row]))
            elif kind == "object":
                path = templates[first].expand(key)
                members.append(Member(name, path, 0, columns[1][row], columns[2][row]))
            else:
                members.append(_value_member(name, first))
        return tuple(members)


def _value_member(extension: str, value: int) -> Member:
    data = str(value).encode()
    return Member(
        extension=extension,
        path="",
        offset=0,
        size_bytes=len(data),
        crc32c=checksum(data),
        data=data,
    )


def _row_that_starts_at(ends: memoryview[int], start: int) -> int | None:
    # Empty keys share their start with the next row; the last of them is the one with text.
    row = bisect_right(ends, start) - 1
    return row if row + 1 < len(ends) and ends[row] == start else None
