"""What every store can do, whatever lies behind its URL."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

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
