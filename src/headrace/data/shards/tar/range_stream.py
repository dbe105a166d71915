"""An object read from front to back by ranges, the next ones already on their way."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future

from headrace.data.storage.store import Buffer, Store

BLOCK_BYTES = 4 * 2**20
"""One request; long enough that latency is a small part of it."""

BLOCKS_AHEAD = 3
"""Requests in flight beside the block in hand: 16 MiB of memory a stream."""


class RangeStream:
    """Bytes of one object in order, with read-ahead.

    Args:
        store: Where the object lies.
        path: The object.
        size_bytes: Its size.
    """

    def __init__(self, store: Store, path: str, size_bytes: int) -> None:
        self.position = 0
        self.size_bytes = size_bytes
        self._store = store
        self._path = path
        self._asked = 0
        self._coming: deque[Future[Buffer]] = deque()
        self._block: Buffer = memoryview(b"")
        self._used = 0

    @property
    def left(self) -> int:
        """How many bytes follow the position."""
        return self.size_bytes - self.position

    def read(self, length: int) -> bytes:
        """Return the next `length` bytes, fewer where the object ends.

        Raises:
            StorageError: A range could not be read.
        """
        pieces = []
        length = min(length, self.left)
        while length > 0:
            if self._used == len(self._block):
                self._next_block()
            piece = self._block[self._used : self._used + length]
            pieces.append(piece)
            self._used += len(piece)
            self.position += len(piece)
            length -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Give up what is in flight."""
        while self._coming:
            self._coming.pop().cancel()

    def _next_block(self) -> None:
        while self._asked < self.size_bytes and len(self._coming) <= BLOCKS_AHEAD:
            length = min(BLOCK_BYTES, self.size_bytes - self._asked)
            self._coming.append(self._store.submit_range(self._path, self._asked, length))
            self._asked += length
        self._block = self._coming.popleft().result()
        self._used = 0
