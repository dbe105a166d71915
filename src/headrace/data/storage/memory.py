"""Objects in this process's memory: memory://name/folder. For tests and small experiments."""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from headrace.core.errors import CorruptError, NotFoundError
from headrace.core.hashes import blake2b
from headrace.data.storage.pieces import done_future, pieces_of
from headrace.data.storage.ranges import check_range
from headrace.data.storage.store import Buffer, ObjectInfo, Part, PutData
from headrace.data.storage.urls import Location, check_path

# By the URL's name, then by key. A forked child sees a copy, another process nothing.
_OBJECTS: dict[str, dict[str, tuple[bytes, ObjectInfo]]] = {}
_LOCK = threading.Lock()


class MemoryStore:
    """Objects in this process's memory, shared by all stores of one name."""

    def __init__(self, location: Location) -> None:
        self._location = location
        with _LOCK:
            self._objects = _OBJECTS.setdefault(location.root, {})

    @property
    def url(self) -> str:
        """The URL as given, normalised."""
        return self._location.url

    def __reduce__(self) -> tuple[type[MemoryStore], tuple[Location]]:
        return MemoryStore, (self._location,)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object below the folder `prefix`, sorted by path."""
        folder = self._location.key(prefix.strip("/"))
        cut = len(self._location.key("")) + 1 if self._location.prefix else 0
        for key, (_, info) in sorted(self._objects.items()):
            if not folder or key.startswith(f"{folder}/"):
                yield ObjectInfo(
                    path=key[cut:],
                    size_bytes=info.size_bytes,
                    etag=info.etag,
                    modified_s=info.modified_s,
                )

    def head(self, path: str) -> ObjectInfo:
        """Return what is known of an object."""
        info = self._find(path)[1]
        return ObjectInfo(
            path=path, size_bytes=info.size_bytes, etag=info.etag, modified_s=info.modified_s
        )

    def get(self, path: str) -> Buffer:
        """Return a whole object."""
        return memoryview(self._find(path)[0])

    def get_range(self, path: str, start: int, length: int) -> Buffer:
        """Return bytes [start, start + length) of an object."""
        check_range(start, length)
        data = self._find(path)[0]
        if start + length > len(data):
            raise CorruptError(
                f"{self._location.object_url(path)} (bytes {start}-{start + length - 1}): the "
                f"object has {len(data)} bytes."
            )
        return memoryview(data)[start : start + length]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[Buffer]:
        """Return several (start, length) ranges of an object."""
        return [self.get_range(path, start, length) for start, length in ranges]

    def submit_range(self, path: str, start: int, length: int) -> Future[Buffer]:
        """Read a range; the future is already done."""
        return done_future(lambda: self.get_range(path, start, length))

    def submit_head(self, path: str) -> Future[ObjectInfo]:
        """Return what is known of an object; the future is already done."""
        return done_future(lambda: self.head(path))

    def submit_part(self, path: str, start: int, length: int) -> Future[Part]:
        """Read a range up to the object's end; the future is already done."""
        return done_future(
            lambda: Part(data=self.get(path)[start : start + length], info=self.head(path))
        )

    def put(self, path: str, data: PutData) -> None:
        """Write an object."""
        check_path(path)
        self._objects[self._location.key(path)] = _stored(path, b"".join(pieces_of(data)))

    def create(self, path: str, data: bytes) -> bool:
        """Write an object unless there is one; return whether it was written."""
        check_path(path)
        stored = _stored(path, data)
        return self._objects.setdefault(self._location.key(path), stored) is stored

    def delete(self, path: str) -> None:
        """Remove an object."""
        self._objects.pop(self._location.key(path), None)

    def forget(self, path: str, start: int, length: int) -> None:
        """Do nothing: there is no cache."""

    def close(self) -> None:
        """Do nothing: the objects live as long as the process."""

    def _find(self, path: str) -> tuple[bytes, ObjectInfo]:
        check_path(path)
        found = self._objects.get(self._location.key(path))
        if found is None:
            raise NotFoundError(
                f"{self._location.object_url(path)} does not exist. Objects of memory:// live in "
                "the process that put them."
            )
        return found


def _stored(path: str, data: bytes) -> tuple[bytes, ObjectInfo]:
    etag = blake2b(data, 16).hex()
    return data, ObjectInfo(path=path, size_bytes=len(data), etag=etag, modified_s=time.time())
