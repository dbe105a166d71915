"""A shard as a stream of bytes, and the index rows that belong to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headrace.core.errors import BadSampleError
from headrace.data.shards.members import checksum
from headrace.data.shards.rows.builder import RowBuilder
from headrace.data.shards.rows.columns import LARGEST_MEMBER_BYTES, MemberKind
from headrace.data.shards.tar.header import END_OF_ARCHIVE, padding, write_header


class TarWriter:
    """Turns samples into the bytes of a tar and the rows of its index, in one pass.

    Attributes:
        rows: The rows so far.
        size_bytes: The tar's size so far.
    """

    def __init__(self) -> None:
        self.rows = RowBuilder()
        self.size_bytes = 0

    def pieces(self, samples: Iterable[tuple[str, Sequence[tuple[str, bytes]]]]) -> Iterator[bytes]:
        """Yield the tar, one piece a sample and the end mark.

        Args:
            samples: Keys, each with its members: extension and content.
        """
        for key, members in samples:
            yield self._sample(key, members)
        self.size_bytes += len(END_OF_ARCHIVE)
        yield END_OF_ARCHIVE

    def _sample(self, key: str, members: Sequence[tuple[str, bytes]]) -> bytes:
        pieces: list[bytes] = []
        places: dict[str, tuple[MemberKind, Sequence[int]]] = {}
        position = self.size_bytes
        for extension, data in members:
            header = write_header(f"{key}.{extension}", len(data))
            offset = position + len(header)
            places[extension] = "range", (offset, len(data), checksum(data))
            fill = bytes(padding(len(data)))
            pieces += header, data, fill
            position = offset + len(data) + len(fill)
        self.rows.add(key, places)
        self.size_bytes = position
        return b"".join(pieces)


def check_size(data: bytes) -> None:
    """Raise BadSampleError where a member is too large for the index."""
    if len(data) > LARGEST_MEMBER_BYTES:
        raise BadSampleError(
            f"{len(data)} bytes; members of a shard have at most {LARGEST_MEMBER_BYTES} (4 GiB)."
        )
