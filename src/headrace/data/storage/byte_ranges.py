"""Byte ranges of objects: the requests that fetch them, and a stream of ranges read ahead.

A span is (start, length), like a range; one request reads it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from headrace.core.errors import UsageError
from headrace.data.storage.store import Buffer, Store

Span = tuple[int, int]


def plan_spans(ranges: Sequence[Span], *, coalesce_bytes: int, most_bytes: int) -> list[Span]:
    """Return the requests that cover `ranges`: sorted, not empty, not overlapping.

    Ranges at most `coalesce_bytes` apart share a request of up to `most_bytes`.
    """
    spans: list[Span] = []
    for start, length in sorted(span for span in ranges if span[1] > 0):
        end = start + length
        if not spans:
            spans.append((start, length))
            continue
        last_start, last_length = spans[-1]
        covered = last_start + last_length
        if end <= covered:
            continue
        if start <= covered + coalesce_bytes and end - last_start <= most_bytes:
            spans[-1] = (last_start, end - last_start)
        else:
            spans.append((max(start, covered), end - max(start, covered)))
    return spans


def cut_ranges(
    ranges: Sequence[Span], spans: Sequence[Span], buffers: Sequence[memoryview]
) -> list[memoryview]:
    """Cut the ranges out of the answers to `spans`: views, or copies where they span several."""
    starts = [start for start, _ in spans]
    return [_cut(span, starts, buffers) for span in ranges]


def split_span(start: int, end: int, most_bytes: int) -> list[Span]:
    """Cut [start, end) into spans of at most `most_bytes`."""
    return [(cut, min(most_bytes, end - cut)) for cut in range(start, end, most_bytes)]


def check_range(start: int, length: int) -> None:
    """Raise UsageError for a range with a negative start or length."""
    if start < 0 or length < 0:
        raise UsageError(f"range start={start} length={length}: both are 0 or more.")


def _cut(span: Span, starts: list[int], buffers: Sequence[memoryview]) -> memoryview:
    start, length = span
    if length == 0:
        return memoryview(b"")
    number = bisect_right(starts, start) - 1
    offset = start - starts[number]
    if offset + length <= len(buffers[number]):
        return buffers[number][offset : offset + length]
    whole = bytearray(length)
    filled = 0
    while filled < length:
        piece = buffers[number][offset : offset + length - filled]
        whole[filled : filled + len(piece)] = piece
        filled, offset, number = filled + len(piece), 0, number + 1
    return memoryview(whole).toreadonly()


BLOCK_BYTES = 4 * 2**20
"""One request; long enough that latency is a small part of it."""

BLOCKS_AHEAD = 3
"""Requests in flight besides the current block: 16 MiB of memory a stream."""


class RangeStream:
    """The bytes of one object in order, with read-ahead."""

    def __init__(self, store: Store, path: str, size_bytes: int) -> None:
        self.position = 0
        self.size_bytes = size_bytes
        self._store = store
        self._path = path
        self._requested = 0
        self._pending: deque[Future[Buffer]] = deque()
        self._block: Buffer = memoryview(b"")
        self._used = 0

    @property
    def left(self) -> int:
        """The number of bytes after the position."""
        return self.size_bytes - self.position

    def read(self, length: int) -> bytes:
        """Return the next `length` bytes, fewer where the object ends."""
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
        """Cancel the requests in flight."""
        while self._pending:
            self._pending.pop().cancel()

    def _next_block(self) -> None:
        while self._requested < self.size_bytes and len(self._pending) <= BLOCKS_AHEAD:
            length = min(BLOCK_BYTES, self.size_bytes - self._requested)
            self._pending.append(self._store.submit_range(self._path, self._requested, length))
            self._requested += length
        self._block = self._pending.popleft().result()
        self._used = 0
