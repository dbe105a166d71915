"""A channel's bytes in the order of its keys, fetched ahead of whoever reads them."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from headrace.data.copies.listing import Listing, check_same
from headrace.data.storage import ObjectInfo, StorageConfig, open_store
from headrace.data.storage.store import Part

PIECE_BYTES = 2**23
_AHEAD_BYTES = 2**26
_AHEAD_PIECES = 64  # of 100 kB each, 30 ms away, they are 200 MB/s
_Span = tuple[ObjectInfo, int, int]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of an object, on their way.

    Attributes:
        url: The object's, as it may be told.
        info: The object, as it was listed.
        length: How many bytes.
        part: They.
    """

    url: str
    info: ObjectInfo
    length: int
    part: Future[Part]

    def data(self) -> memoryview:
        """Return them; raises StorageError where they cannot be had, or the object is another."""
        part = self.part.result()
        check_same(self.url, self.info, part.info)
        return memoryview(part.data)


class ChannelStream:
    """All objects of a listing, one behind the other.

    Args:
        listing: The objects.
        config: How requests are made.
    """

    def __init__(self, listing: Listing, config: StorageConfig) -> None:
        self._store = open_store(listing.base, config=config, client="direct")
        self._listing = listing

    def pieces(self) -> Generator[Piece]:
        """Yield an epoch's bytes in order; what follows is fetched meanwhile."""
        ahead: deque[Piece] = deque()
        ahead_bytes = 0
        try:
            for span in self._spans():
                while ahead and (
                    len(ahead) >= _AHEAD_PIECES or ahead_bytes + span[2] > _AHEAD_BYTES
                ):
                    ahead_bytes -= ahead[0].length
                    yield ahead.popleft()
                ahead.append(self._begun(*span))
                ahead_bytes += span[2]
            while ahead:
                yield ahead.popleft()
        finally:
            for piece in ahead:  # whoever reads has left
                piece.part.cancel()

    def _spans(self) -> Iterator[_Span]:
        for info in self._listing.objects:
            for start in range(0, info.size_bytes, PIECE_BYTES):
                yield info, start, min(PIECE_BYTES, info.size_bytes - start)

    def _begun(self, info: ObjectInfo, start: int, length: int) -> Piece:
        part = self._store.submit_part(info.path, start, length)
        return Piece(f"{self._store.url}/{info.path}", info, length, part)
