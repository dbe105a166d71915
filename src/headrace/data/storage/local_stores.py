"""Stores without a network: files below a local folder, and objects in this process's memory.

Files are read with plain pread, which is safe in any process, forked or not. memory://name/folder
is for tests and small experiments.
"""

from __future__ import annotations

import builtins
import errno
import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, Self, TypeAlias

from headrace.core.errors import (
    CorruptError,
    DeniedError,
    NoSpaceError,
    NotFoundError,
    StorageError,
    StorageTimeoutError,
)
from headrace.core.files import (
    create_atomically,
    is_temporary,
    remove_abandoned_files,
    write_atomically,
)
from headrace.core.lazy import blake2b
from headrace.data.storage.store import (
    Buffer,
    LocatedStore,
    ObjectInfo,
    Part,
    PutData,
    check_range,
    done_future,
    pieces_of,
)
from headrace.data.storage.urls import Location, check_path

# A shared file system may not show the locks of other hosts' writers.
_ABANDONED_AFTER_S = 3600.0
_MOST_TIDIED = 256  # folders that are remembered: checkpoints make one after the other
# A pipe is opened without waiting for its other end; of files the flag changes nothing.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_ERRORS: dict[int, type[StorageError]] = {
    errno.ENOENT: NotFoundError,
    errno.ENOTDIR: NotFoundError,
    errno.EISDIR: NotFoundError,
    errno.ELOOP: NotFoundError,  # a link that leads to itself
    errno.ENAMETOOLONG: NotFoundError,
    errno.ENXIO: NotFoundError,  # a socket, or a pipe without a reader
    errno.EACCES: DeniedError,
    errno.EPERM: DeniedError,
    errno.EROFS: DeniedError,
    errno.ENOSPC: NoSpaceError,
    errno.EDQUOT: NoSpaceError,
    errno.ETIMEDOUT: StorageTimeoutError,
}


class _ImmediateStore(LocatedStore):
    """A store that needs no waiting: futures are already done."""

    def __reduce__(self) -> tuple[type[Self], tuple[Location]]:
        return type(self), (self._location,)

    def submit_range(self, path: str, start: int, length: int) -> Future[Buffer]:
        return done_future(lambda: self.get_range(path, start, length))

    def submit_head(self, path: str) -> Future[ObjectInfo]:
        return done_future(lambda: self.head(path))

    def submit_part(self, path: str, start: int, length: int) -> Future[Part]:
        return done_future(lambda: self._part(path, start, length))

    def _part(self, path: str, start: int, length: int) -> Part:
        info = self.head(path)
        begin, end = (min(place, info.size_bytes) for place in (start, start + length))
        return Part(data=self.get_range(path, begin, end - begin), info=info)


class LocalStore(_ImmediateStore):
    """The files below one folder; paths outside it are refused."""

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        self._folder = location.prefix
        self._tidied: set[Path] = set()

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every file below the folder `prefix`, sorted by path; links are followed."""
        for path, status in self._sorted(prefix, every=False):
            assert isinstance(status, os.stat_result)
            yield _info(path, status)

    def list_entries(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every file below the folder `prefix`, and every entry that has none to read."""
        for path, status in self._sorted(prefix, every=True):
            if isinstance(status, _NoFile):
                yield ObjectInfo(
                    path=path,
                    size_bytes=0,
                    etag="",
                    modified_s=0,
                    unreadable=status.reason,
                    is_folder=status.is_folder,
                )
            else:
                yield _info(path, status)

    def head(self, path: str) -> ObjectInfo:
        """Return the description of a file."""
        with self._translated(path):
            status = os.stat(self._file(path))  # noqa: PTH116  (a path object costs more than the call)
        if not stat.S_ISREG(status.st_mode):
            raise NotFoundError(f"{self._location.object_url(path)} is no file.")
        return _info(path, status)

    def get(self, path: str) -> Buffer:
        """Return a whole file."""
        with self._translated(path):
            descriptor = os.open(self._file(path), _READ)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise NotFoundError(f"{self._location.object_url(path)} is no file.")
                return memoryview(_read(descriptor, 0, status.st_size))
            finally:
                os.close(descriptor)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[Buffer]:
        """Return several (start, length) ranges of a file, one read each."""
        for start, length in ranges:
            check_range(start, length)
        try:  # no context manager: this runs for every sample, and one costs 2 us
            descriptor = os.open(self._file(path), _READ)
            try:
                return [self._range(path, descriptor, start, length) for start, length in ranges]
            finally:
                os.close(descriptor)
        except StorageError:
            raise
        except OSError as error:
            raise self._storage_error(path, error) from error

    def put(self, path: str, data: PutData) -> None:
        """Write a file under a temporary name, flush it to the disk, then rename it."""
        file = self._tidied_place(path)
        with self._translated(path):
            write_atomically(file, pieces_of(data))

    def create(self, path: str, data: bytes) -> bool:
        """Write a file unless it exists; return whether it was written."""
        file = self._tidied_place(path)
        with self._translated(path):
            return create_atomically(file, data)

    def delete(self, path: str) -> None:
        """Remove a file."""
        with self._translated(path), suppress(FileNotFoundError):
            os.unlink(self._file(path))  # noqa: PTH108

    def _sorted(self, prefix: str, *, every: bool) -> builtins.list[_Entry]:
        prefix = prefix.strip("/")
        folder = self._file(prefix) if prefix else self._folder
        with self._translated(prefix):
            return sorted(_walk(folder, prefix, (), every=every), key=itemgetter(0))

    def _file(self, path: str) -> str:
        check_path(path)
        return f"{self._folder}/{path}"

    def _tidied_place(self, path: str) -> Path:
        file = Path(self._file(path))
        if file.parent not in self._tidied:
            if len(self._tidied) >= _MOST_TIDIED:
                self._tidied.clear()
            self._tidied.add(file.parent)
            remove_abandoned_files(file.parent, older_than_s=_ABANDONED_AFTER_S)
        return file

    def _range(self, path: str, descriptor: int, start: int, length: int) -> Buffer:
        data = _read(descriptor, start, length)
        if len(data) != length:
            raise CorruptError(
                f"{self._location.object_url(path)} (bytes {start}-{start + length - 1}): the file "
                f"has {os.fstat(descriptor).st_size} bytes."
            )
        return memoryview(data)

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except OSError as error:
            raise self._storage_error(path, error) from error

    def _storage_error(self, path: str, error: OSError) -> StorageError:
        kind = _ERRORS.get(error.errno or 0, StorageError)
        return kind(f"{self._location.object_url(path)}: {error.strerror or error}.")


def _read(descriptor: int, start: int, length: int) -> bytes:
    """Return up to `length` bytes; pread may return fewer, for example above 2 GiB."""
    data = os.pread(descriptor, length, start)
    if len(data) == length or not data:
        return data
    pieces = [data]
    filled = len(data)
    while filled < length and (piece := os.pread(descriptor, length - filled, start + filled)):
        pieces.append(piece)
        filled += len(piece)
    return b"".join(pieces)


class _NoFile(NamedTuple):
    """An entry of a folder that is no file to read."""

    reason: str  # why it cannot be read; "": an empty folder
    is_folder: bool | None = False  # None: it may lead to one


_Entry: TypeAlias = "tuple[str, os.stat_result | _NoFile]"
"""A path with the status of its file, or what there is instead."""

_TYPES = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _walk(
    folder: str, path: str, above: tuple[tuple[int, int], ...], *, every: bool
) -> Iterator[_Entry]:
    """Yield every file, unsorted, and with `every` each entry that has none to read.

    `above` detects loops of links.
    """
    try:
        here = os.stat(folder)  # noqa: PTH116
        identity = (here.st_dev, here.st_ino)
        if identity in above:
            return
        is_empty = True
        with os.scandir(folder) as entries:
            for entry in entries:
                is_empty = False
                below = f"{path}/{entry.name}" if path else entry.name
                yield from _entries(entry, below, (*above, identity), every=every)
        if is_empty and every and above:
            yield path, _NoFile("", is_folder=True)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if not (every and path):
            raise
        yield path, _NoFile(f"It cannot be read: {error.strerror or error}.", is_folder=True)


def _entries(
    entry: os.DirEntry[str], path: str, above: tuple[tuple[int, int], ...], *, every: bool
) -> Iterator[_Entry]:
    """Yield one entry of a folder, and what is below it."""
    try:
        if entry.is_dir():
            yield from _walk(entry.path, path, above, every=every)
        elif entry.is_file():
            if not is_temporary(entry.name):
                yield path, entry.stat()
        elif every:
            yield path, _why_unreadable(entry)
    except FileNotFoundError:  # deleted since the folder was listed
        return
    except OSError as error:
        if not every:
            raise
        yield path, _NoFile(f"It cannot be read: {error.strerror or error}.", is_folder=None)


def _why_unreadable(entry: os.DirEntry[str]) -> _NoFile:
    try:
        mode = os.stat(entry.path).st_mode  # noqa: PTH116
    except FileNotFoundError:
        if not entry.is_symlink():
            raise
        target = Path(entry.path).readlink()
        return _NoFile(f"A link to {target}, which does not exist.", is_folder=None)
    return _NoFile(f"{_TYPES.get(stat.S_IFMT(mode), 'something else')}, no file.".capitalize())


def _info(path: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(
        path=path,
        size_bytes=status.st_size,
        etag=f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}",
        modified_s=status.st_mtime,
    )


# By the URL's name, then by key. A forked child has a copy, other processes have nothing.
_OBJECTS: dict[str, dict[str, tuple[bytes, ObjectInfo]]] = {}
_LOCK = threading.Lock()


class MemoryStore(_ImmediateStore):
    """The objects in this process's memory, shared by all stores of one name."""

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        with _LOCK:
            self._objects = _OBJECTS.setdefault(location.root, {})

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object below the folder `prefix`, sorted by path."""
        folder = self._location.key(prefix.strip("/"))
        cut = len(self._location.key("")) + 1 if self._location.prefix else 0
        for key, (_, info) in sorted(self._objects.items()):
            if not folder or key.startswith(f"{folder}/"):
                yield replace(info, path=key[cut:])

    def head(self, path: str) -> ObjectInfo:
        """Return an object's description."""
        return replace(self._find(path)[1], path=path)

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

    def put(self, path: str, data: PutData) -> None:
        """Write an object."""
        check_path(path)
        self._objects[self._location.key(path)] = _stored(path, b"".join(pieces_of(data)))

    def create(self, path: str, data: bytes) -> bool:
        """Write an object unless it exists; return whether it was written."""
        check_path(path)
        stored = _stored(path, data)
        return self._objects.setdefault(self._location.key(path), stored) is stored

    def delete(self, path: str) -> None:
        """Remove an object."""
        self._objects.pop(self._location.key(path), None)

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
