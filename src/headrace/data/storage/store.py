"""The protocol of a store, its objects and settings, byte ranges, and the data that it writes."""

from __future__ import annotations

import builtins
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from headrace.core.errors import HeadraceError, UsageError
from headrace.data.storage.urls import Location


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The retry policy: exponential backoff with full jitter, within a deadline.

    Wait n (from 0) is uniform in [0, min(longest_wait_s, first_wait_s * 2**n)].
    Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/

    Attributes:
        deadline_s: Total time of one operation over all its attempts.
        first_wait_s: Bound of the wait before the second attempt.
        longest_wait_s: Bound of every wait.
        unreachable_s: Deadline where a host name does not resolve or nothing listens and no request
            was answered yet: a wrong endpoint should be reported sooner than after a minute.
        stall_s: An attempt ends when no byte arrives for so long.
        corrupt_attempts: Most attempts in all where answers are short or wrong.
    """

    deadline_s: float = 60.0
    first_wait_s: float = 0.1
    longest_wait_s: float = 8.0
    unreachable_s: float = 10.0
    stall_s: float = 10.0
    corrupt_attempts: int = 3

    def __post_init__(self) -> None:
        if min(self.deadline_s, self.first_wait_s, self.longest_wait_s, self.stall_s) <= 0:
            raise UsageError(f"{self}: times are greater than 0 seconds.")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """The settings of a store. Credentials come from where each cloud's own tools find them.

    Attributes:
        retry: The retry policy.
        hedge_after_s: A GET that takes longer is requested again on a fresh connection; the first
            answer wins.
        in_flight: Most requests at once; more of them wait.
        part_bytes: Longer reads and writes are cut into parts of this size, sent in parallel.
        coalesce_bytes: Ranges of one object no further apart than this share a request.
        connect_timeout_s: Time to open a connection.
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    hedge_after_s: float = 2.0
    in_flight: int = 64
    part_bytes: int = 8 * 2**20
    coalesce_bytes: int = 256 * 2**10
    connect_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        if self.in_flight < 1 or self.hedge_after_s <= 0:
            raise UsageError(f"{self}: in_flight is 1 or more and hedge_after_s above 0.")
        if self.part_bytes < 5 * 2**20:
            raise UsageError(
                f"part_bytes={self.part_bytes}: S3 takes parts of 5 MiB (5242880) or more."
            )


Buffer: TypeAlias = memoryview
"""Bytes that were read: always a read-only one-dimensional `memoryview` of format "B".

It may be a view of a larger read, whose memory lives as long as the view does; `bytes(buffer)`
makes a copy of its own.
"""

PutData: TypeAlias = "bytes | bytearray | memoryview | Path | Iterable[bytes]"
"""Data for `Store.put`: the bytes, a local file, or pieces that are streamed in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One object of a store."""

    path: str  # below the store's URL, "/" between folders
    size_bytes: int
    etag: str  # a text that changes when the bytes change; "" where the store has none
    modified_s: float  # time of the last write, seconds since 1970 (UTC)
    unreadable: str = ""  # why it cannot be read, of an entry that `list_entries` alone yields
    is_folder: bool | None = False  # of such an entry; None: a link that may lead to one


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Bytes of an object, and its description."""

    data: Buffer
    info: ObjectInfo


class Store(Protocol):
    """The objects below one URL. Thread-safe; pickles as its URL and settings.

    All paths are relative to `url`. Every method raises a `StorageError` that names the object's
    URL and, where there is one, the range: NotFoundError, DeniedError (CredentialsError),
    ThrottledError, StorageTimeoutError, CorruptError, NoSpaceError, ForkedClientError. The
    result of a read has the requested length; a shorter answer is an error.
    """

    @property
    def url(self) -> str:
        """The URL as given, normalised; holds no credentials and no query."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below a folder, at any depth, sorted by path; none if it is missing."""

    def list_entries(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below a folder, and what stands among them but cannot be read.

        That is found in local folders: links that lead nowhere, pipes, sockets, devices, folders
        without permission. Such an entry is `unreadable`. Folders with nothing in them come, too.
        """

    def head(self, path: str) -> ObjectInfo:
        """Return an object's description without reading it."""

    def get(self, path: str) -> Buffer:
        """Return a whole object."""

    def get_range(self, path: str, start: int, length: int) -> Buffer:
        """Return bytes [start, start + length) of an object."""
        return self.get_ranges(path, [(start, length)])[0]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[Buffer]:
        """Return several (start, length) ranges as ordered; adjacent ones share a request."""

    def submit_range(self, path: str, start: int, length: int) -> Future[Buffer]:
        """Start reading a range and return at once; many may be in flight."""

    def put(self, path: str, data: PutData) -> None:
        """Write an object; it appears complete or not at all, replacing an existing one."""

    def create(self, path: str, data: bytes) -> bool:
        """Write a small object unless it exists; return whether it was written.

        Of several concurrent calls one gets True, except on plain web servers and where a server
        ignores conditions. After a lost answer all may get False: read the object to see whose it
        is.
        """

    def delete(self, path: str) -> None:
        """Remove an object; a missing one is no error."""

    def forget(self, path: str, start: int, length: int) -> None:
        """Drop a range from a cache, if any: its next read goes to the store."""

    def close(self) -> None:
        """Release connections and files, if any. A closed store may be used again."""


class CacheableStore(Store, Protocol):
    """A store that also provides what a cache must know. All but CachedStore do."""

    def submit_head(self, path: str) -> Future[ObjectInfo]:
        """Request an object's description."""

    def submit_part(self, path: str, start: int, length: int) -> Future[Part]:
        """Start reading a range that may reach beyond the object's end; it stops there."""


class LocatedStore(CacheableStore):
    """The base of stores at a location: without a cache, and with nothing to close."""

    def __init__(self, location: Location) -> None:
        self._location = location

    @property
    def url(self) -> str:
        """The URL as given, normalised, without credentials and query; a folder's absolute path."""
        return self._location.url

    def list_entries(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects: there is nothing else here."""
        return self.list(prefix)

    def forget(self, path: str, start: int, length: int) -> None:
        """Do nothing: there is no cache."""

    def close(self) -> None:
        """Do nothing: there are no connections."""


_T = TypeVar("_T")
_READ_BYTES = 4 * 2**20
_MOST_PARTS = 9000  # S3 takes 10,000


def is_repeatable(data: PutData) -> bool:
    """Return whether `data` can be read again, unlike a stream."""
    return isinstance(data, bytes | bytearray | memoryview | Path)


def size_of(data: PutData) -> int | None:
    """Return the size of `data` in bytes; None of a stream. Raises OSError (there is no file)."""
    if isinstance(data, Path):
        return data.stat().st_size
    if isinstance(data, bytes | bytearray | memoryview):
        return memoryview(data).nbytes
    return None


def part_size(size_bytes: int | None, usual: int) -> int:
    """Return the part size of an upload: more than `usual` where there would be over 9,000 parts.

    A stream of unknown length is limited to 9,000 parts of the usual size.
    """
    return usual if size_bytes is None else max(usual, -(-size_bytes // _MOST_PARTS))


def pieces_of(data: PutData) -> Iterator[bytes | bytearray | memoryview]:
    """Yield `data` piece by piece; a file is read in pieces of 4 MiB."""
    if isinstance(data, Path):
        with data.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                yield piece
    elif isinstance(data, bytes | bytearray | memoryview):
        yield data
    else:
        yield from data


def regrouped(pieces: Iterable[bytes | bytearray | memoryview], size: int) -> Iterator[bytes]:
    """Yield the same bytes in pieces of exactly `size`, except the last one."""
    waiting = bytearray()
    for piece in pieces:
        view = memoryview(piece).cast("B")
        if waiting:
            missing = size - len(waiting)
            waiting += view[:missing]
            view = view[missing:]
            if len(waiting) < size:
                continue
            yield bytes(waiting)
            waiting.clear()
        whole = len(view) - len(view) % size
        for start in range(0, whole, size):
            yield bytes(view[start : start + size])
        waiting += view[whole:]
    if waiting:
        yield bytes(waiting)


def done_future(work: Callable[[], _T]) -> Future[_T]:
    """Return a future that already holds the result of `work`, or the HeadraceError it raised."""
    future: Future[_T] = Future()
    try:
        future.set_result(work())
    except HeadraceError as error:
        future.set_exception(error)
    return future


Span = tuple[int, int]  # (start, length), like a range; one request reads it


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
