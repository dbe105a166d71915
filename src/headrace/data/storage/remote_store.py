"""The store behind a network, over a client in this process or in a subprocess."""

from __future__ import annotations

import builtins
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from headrace.core.errors import StorageTimeoutError
from headrace.data.storage.client.fork_state import is_leaf, refuse_after_fork
from headrace.data.storage.store import (
    Buffer,
    LocatedStore,
    ObjectInfo,
    Part,
    PutData,
    StorageConfig,
    check_range,
    cut_ranges,
    done_future,
    plan_spans,
)
from headrace.data.storage.urls import Location, check_path

if TYPE_CHECKING:
    from headrace.data.storage.client.direct import DirectClient
    from headrace.data.storage.client.subprocess_client import SubprocessClient


StorageClient: TypeAlias = "DirectClient | SubprocessClient"
"""Requests for keys: paths below the bucket, also in descriptions. Errors name `target`, a URL and
perhaps a range. Every future ends within the retry policy's deadline once its request has begun."""


_T = TypeVar("_T")
_GRACE_S = 30.0  # beyond the retry policy's deadline, before a wait ends with an error


# As the client takes them in a key; it writes others otherwise, which changes their order.
_PLAIN = re.compile(r"[A-Za-z0-9/_.=-]*")
# For a key's last character one that is before it; "": few keys are between.
_BEFORE = {"/": "", "-": "", "0": "", ".": "-", "=": "9", "A": "9", "_": "Z", "a": "Z"}


def key_before(start: str) -> str | None:
    """Return a key before all that begin with a text, after which listing begins; None: none is.

    Other keys may lie between, but not those of another folder or of a longer number.
    """
    plain = _PLAIN.match(start)
    assert plain is not None
    if not plain[0]:
        return None
    last = plain[0][-1]
    before = _BEFORE.get(last, chr(ord(last) - 1))
    return plain[0][:-1] + (f"{before}zzzz" if before else "") or None


class RemoteStore(LocatedStore):
    """The objects below a URL of s3, gs, az or http; connects at the first request."""

    def __init__(
        self, location: Location, config: StorageConfig, client: Literal["auto", "direct"]
    ) -> None:
        super().__init__(location)
        self._config = config
        self._choice = client
        self._client: StorageClient | None = None
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"RemoteStore({self.url!r})"

    def __reduce__(
        self,
    ) -> tuple[type[RemoteStore], tuple[Location, StorageConfig, Literal["auto", "direct"]]]:
        return RemoteStore, (self._location, self._config, self._choice)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object below the folder `prefix`, sorted by path."""
        folder = prefix.strip("/")
        key, target = self._location.key(folder), self._location.object_url(prefix)
        cut = len(self._location.prefix) + 1 if self._location.prefix else 0
        found = [
            replace(info, path=info.path[cut:])
            for page in self._connected().list(key, target)
            for info in page
            # Consoles write an empty object to show a folder; the client drops its slash.
            if info.path[cut:] != folder or info.size_bytes
        ]
        found.sort(key=lambda info: info.path)
        yield from found

    def list_beginning(self, start: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose paths begin with a text, sorted by path.

        The text may end within a name: "train" stands for train/x and train-a.csv, too. For stores
        that list in the order of keys; listing ends at the first key beyond.
        """
        folder, cut = self._location.prefix, len(self._location.key("x")) - 1
        key, target = self._location.key(start), self._location.object_url(start)
        found: dict[str, ObjectInfo] = {}
        for page in self._connected().list(folder, target, key_before(key)):
            found |= {info.path: info for info in page if info.path.startswith(key)}
            if page and page[-1].path > key and not page[-1].path.startswith(key):
                break
        for path in sorted(found):
            if not path.endswith("/"):
                yield replace(found[path], path=path[cut:])

    def head(self, path: str) -> ObjectInfo:
        """Return an object's description."""
        key, target = self._named(path)
        return replace(self._wait(self._connected().head(key, target), target), path=path)

    def get(self, path: str) -> Buffer:
        """Return a whole object; a long one is read in parts, in parallel."""
        key, target = self._named(path)
        # No time limit for the whole: each of its parts has one.
        return self._connected().read_whole(key, target).result()

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[Buffer]:
        """Return several (start, length) ranges; adjacent ones share a request."""
        for start, length in ranges:
            check_range(start, length)
        coalesce_bytes, most_bytes = self._config.coalesce_bytes, self._config.part_bytes
        spans = plan_spans(ranges, coalesce_bytes=coalesce_bytes, most_bytes=most_bytes)
        futures = [self._read(path, start, length) for start, length in spans]
        target = self._location.object_url(path)
        return cut_ranges(ranges, spans, [self._wait(future, target) for future in futures])

    def submit_range(self, path: str, start: int, length: int) -> Future[Buffer]:
        """Start reading a range and return at once; many may be in flight."""
        check_range(start, length)
        if length == 0:
            return done_future(lambda: memoryview(b""))
        return self._read(path, start, length)

    def submit_head(self, path: str) -> Future[ObjectInfo]:
        """Request an object's description."""
        return self._connected().head(*self._named(path))

    def submit_part(self, path: str, start: int, length: int) -> Future[Part]:
        """Start reading a range that may reach beyond the object's end; it stops there."""
        check_range(start, length)
        return self._connected().read_part(*self._named_range(path, start, length))

    def put(self, path: str, data: PutData) -> None:
        """Write an object; it appears complete or not at all."""
        key, target = self._named(path)
        self._connected().put(key, data, target)

    def create(self, path: str, data: bytes) -> bool:
        """Write an object unless it exists; return whether it was written."""
        key, target = self._named(path)
        return self._wait(self._connected().create(key, data, target), target)

    def delete(self, path: str) -> None:
        """Remove an object; a missing one is no error."""
        key, target = self._named(path)
        self._wait(self._connected().delete(key, target), target)

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None and self._pid == os.getpid():
            self._client.close()
        self._client = None

    def _read(self, path: str, start: int, length: int) -> Future[Buffer]:
        return self._connected().read(*self._named_range(path, start, length))

    def _named_range(self, path: str, start: int, length: int) -> tuple[str, int, int, str]:
        key, target = self._named(path)
        return key, start, length, f"{target} (bytes {start}-{start + length - 1})"

    def _named(self, path: str) -> tuple[str, str]:
        check_path(path)
        return self._location.key(path), self._location.object_url(path)

    def _wait(self, future: Future[_T], target: str) -> _T:
        limit_s = self._config.retry.deadline_s + _GRACE_S
        try:
            return future.result(limit_s)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
        raise StorageTimeoutError(
            f"{target}: no answer for {limit_s:.0f} s. Check the host's load."
        )

    def _connected(self) -> StorageClient:
        # A forked child must not use its parent's connections; it makes its own.
        if self._client is None or self._pid != os.getpid():
            self._client, self._pid = self._connect(), os.getpid()
        return self._client

    def _connect(self) -> StorageClient:
        refuse_after_fork()
        if self._choice == "direct" or is_leaf():
            from headrace.data.storage.client.direct import DirectClient

            return DirectClient(self._location, self._config)
        from headrace.data.storage.client.subprocess_client import SubprocessClient

        return SubprocessClient(self._location, self._config)
