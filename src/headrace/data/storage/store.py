"""The protocol of a store: its objects, its settings, and the data that it writes."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from headrace.core.errors import HeadraceError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a failed request is tried again: exponential backoff with full jitter.

    Wait n (from 0) is uniform in [0, min(longest_wait_s, first_wait_s * 2**n)].
    Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/

    Attributes:
        deadline_s: Total time of one operation over all its attempts.
        first_wait_s: Bound of the wait before the second attempt.
        longest_wait_s: Bound of every wait.
        unreachable_s: Deadline instead, where a host name does not resolve or nothing listens
            and no request was answered yet: a wrong endpoint should not take a minute to tell.
        stall_s: An attempt ends when no byte arrives for so long.
        corrupt_attempts: How often a short or wrong answer is asked for in all.
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
    """Settings of a store. Credentials come from where each cloud's own tools find them.

    Attributes:
        retry: When a failed request is tried again.
        hedge_after_s: A GET that takes longer is asked for again on a fresh connection; the
            first answer wins.
        in_flight: Requests that run at once; more wait their turn.
        part_bytes: Longer reads and writes are cut into parts of this size that travel in
            parallel.
        coalesce_bytes: Ranges of one object no further apart than this travel in one request.
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
"""What `Store.put` accepts: the bytes, a local file, or pieces that are streamed in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One object of a store.

    Attributes:
        path: Its path below the store's URL, "/" between folders.
        size_bytes: Its size.
        etag: What changes when its bytes change; "" where the store tells nothing.
        modified_s: When it was last written, seconds since 1970 (UTC).
    """

    path: str
    size_bytes: int
    etag: str
    modified_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Bytes of an object, and what is known of it.

    Attributes:
        data: The bytes.
        info: The object that they are of.
    """

    data: Buffer
    info: ObjectInfo


class Store(Protocol):
    """Objects below one URL. Safe to use from several threads; pickles as its URL and settings.

    All paths are relative to `url`. Every method raises a `StorageError` that names the object's
    URL and, where there is one, the range: NotFoundError, DeniedError (CredentialsError),
    ThrottledError, StorageTimeoutError, CorruptError, NoSpaceError, ForkedClientError. What a
    read returns has the length that was asked for; a shorter answer is an error.
    """

    @property
    def url(self) -> str:
        """The URL as given, normalised; holds no credentials and no query."""
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object below the folder `prefix`, at any depth, sorted by path.

        A folder that does not exist is an empty one.
        """
        ...

    def head(self, path: str) -> ObjectInfo:
        """Return what is known of an object without reading it."""
        ...

    def get(self, path: str) -> Buffer:
        """Return a whole object."""
        ...

    def get_range(self, path: str, start: int, length: int) -> Buffer:
        """Return bytes [start, start + length) of an object."""
        ...

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[Buffer]:
        """Return several (start, length) ranges of an object, in the order given.

        Neighbours travel in one request.
        """
        ...

    def submit_range(self, path: str, start: int, length: int) -> Future[Buffer]:
        """Begin reading a range and return at once; many may be in flight."""
        ...

    def put(self, path: str, data: PutData) -> None:
        """Write an object; it appears whole or not at all, replacing what was there."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Write a small object unless there is one; return whether it was written.

        Of several that do so at once one gets True, but on plain web servers and where a server
        ignores conditions. After a lost answer all may get False: look whose object it is.
        """
        ...

    def delete(self, path: str) -> None:
        """Remove an object; one that does not exist is no error."""
        ...

    def forget(self, path: str, start: int, length: int) -> None:
        """Drop what a cache holds of a range: its next read asks the store. Else do nothing."""
        ...

    def close(self) -> None:
        """Release connections and files. A closed store may be used again."""
        ...


class CacheableStore(Store, Protocol):
    """A store that also tells what a cache must know. All but CachedStore are."""

    def submit_head(self, path: str) -> Future[ObjectInfo]:
        """Begin asking what is known of an object."""
        ...

    def submit_part(self, path: str, start: int, length: int) -> Future[Part]:
        """Begin reading a range that may reach beyond the object's end; it stops there."""
        ...


_T = TypeVar("_T")
_READ_BYTES = 4 * 2**20


def is_repeatable(data: PutData) -> bool:
    """Tell whether `data` can be had again, as a stream cannot."""
    return isinstance(data, bytes | bytearray | memoryview | Path)


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
    """Yield the same bytes in pieces of exactly `size`, but for the last; none where none came."""
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
    """Return a future that already holds what `work` returned, or the error of ours it raised."""
    future: Future[_T] = Future()
    try:
        future.set_result(work())
    except HeadraceError as error:
        future.set_exception(error)
    return future
