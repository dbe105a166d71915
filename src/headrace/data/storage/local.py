"""Files below a local folder, read by plain pread: safe in any process, forked or not."""

from __future__ import annotations

import builtins
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.core.errors import (
    CorruptError,
    DeniedError,
    NoSpaceError,
    NotFoundError,
    StorageError,
    StorageTimeoutError,
)
from headrace.data.storage.atomic import clear_litter, is_litter, write_new, write_whole
from headrace.data.storage.pieces import done_future, pieces_of
from headrace.data.storage.ranges import check_range
from headrace.data.storage.store import Buffer, ObjectInfo, Part, PutData
from headrace.data.storage.urls import Location, check_path

# A shared file system may keep the locks of other hosts' writers from us.
_LITTER_AGE_S = 3600.0
_ERRORS: dict[int, type[StorageError]] = {
    errno.ENOENT: NotFoundError,
    errno.ENOTDIR: NotFoundError,
    errno.EISDIR: NotFoundError,
    errno.EACCES: DeniedError,
    errno.EPERM: DeniedError,
    errno.EROFS: DeniedError,
    errno.ENOSPC: NoSpaceError,
    errno.EDQUOT: NoSpaceError,
    errno.ETIMEDOUT: StorageTimeoutError,
}


class LocalStore:
    """Files below one folder; paths outside it are refused."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._folder = location.prefix
        self._tidied: set[Path] = set()

    @property
    def url(self) -> str:
        """The folder's absolute path."""
        return self._location.url

    def __reduce__(self) -> tuple[type[LocalStore], tuple[Location]]:
        return LocalStore, (self._location,)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every file below the folder `prefix`, sorted by path; links are followed."""
        prefix = prefix.strip("/")
        with self._translated(prefix):
            found = sorted(_walk(self._file(prefix) if prefix else self._folder, prefix, ()))
        for path, status in found:
            yield _info(path, status)

    def head(self, path: str) -> ObjectInfo:
        """Return what is known of a file."""
        with self._translated(path):
            status = os.stat(self._file(path))  # noqa: PTH116  (a path object costs more than the call)
        if not stat.S_ISREG(status.st_mode):
            raise NotFoundError(f"{self._location.object_url(path)} is no file.")
        return _info(path, status)

    def get(self, path: str) -> Buffer:
        """Return a whole file."""
        with self._translated(path), _opened(self._file(path)) as descriptor:
            data = _read(descriptor, 0, os.fstat(descriptor).st_size)
        return memoryview(data)

    def get_range(self, path: str, start: int, length: int) -> Buffer:
        """Return bytes [start, start + length) of a file."""
        return self.get_ranges(path, [(start, length)])[0]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[Buffer]:
        """Return several (start, length) ranges of a file; each is one read, for none costs one."""
        for start, length in ranges:
            check_range(start, length)
        try:  # written out: this runs for every sample, and a context costs 2 us
            descriptor = os.open(self._file(path), os.O_RDONLY | os.O_CLOEXEC)
            try:
                return [self._range(path, descriptor, start, length) for start, length in ranges]
            finally:
                os.close(descriptor)
        except StorageError:
            raise
        except OSError as error:
            raise self._told(path, error) from error

    def submit_range(self, path: str, start: int, length: int) -> Future[Buffer]:
        """Read a range; the future is already done."""
        return done_future(lambda: self.get_range(path, start, length))

    def submit_head(self, path: str) -> Future[ObjectInfo]:
        """Return what is known of a file; the future is already done."""
        return done_future(lambda: self.head(path))

    def submit_part(self, path: str, start: int, length: int) -> Future[Part]:
        """Read a range up to the file's end; the future is already done."""
        return done_future(lambda: self._part(path, start, length))

    def put(self, path: str, data: PutData) -> None:
        """Write a file: beside it, flushed to the disk, then renamed over it."""
        file = self._tidied_place(path)
        with self._translated(path):
            write_whole(file, pieces_of(data))

    def create(self, path: str, data: bytes) -> bool:
        """Write a file unless there is one; return whether it was written."""
        file = self._tidied_place(path)
        with self._translated(path):
            return write_new(file, data)

    def delete(self, path: str) -> None:
        """Remove a file."""
        with self._translated(path), suppress(FileNotFoundError):
            os.unlink(self._file(path))  # noqa: PTH108

    def forget(self, path: str, start: int, length: int) -> None:
        """Do nothing: there is no cache."""

    def close(self) -> None:
        """Do nothing: files are closed after each read."""

    def _file(self, path: str) -> str:
        check_path(path)
        return f"{self._folder}/{path}"

    def _tidied_place(self, path: str) -> Path:
        file = Path(self._file(path))
        if file.parent not in self._tidied:
            self._tidied.add(file.parent)
            clear_litter(file.parent, older_than_s=_LITTER_AGE_S)
        return file

    def _part(self, path: str, start: int, length: int) -> Part:
        info = self.head(path)
        end = min(start + length, info.size_bytes)
        return Part(data=self.get_range(path, start, max(0, end - start)), info=info)

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
            raise self._told(path, error) from error

    def _told(self, path: str, error: OSError) -> StorageError:
        kind = _ERRORS.get(error.errno or 0, StorageError)
        return kind(f"{self._location.object_url(path)}: {error.strerror or error}.")


@contextmanager
def _opened(file: str) -> Iterator[int]:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(descriptor: int, start: int, length: int) -> bytes:
    """Return up to `length` bytes: one pread, more only where the kernel returns fewer (2 GiB)."""
    data = os.pread(descriptor, length, start)
    if len(data) == length or not data:
        return data
    pieces = [data]
    filled = len(data)
    while filled < length and (piece := os.pread(descriptor, length - filled, start + filled)):
        pieces.append(piece)
        filled += len(piece)
    return b"".join(pieces)


def _walk(
    folder: str, path: str, above: tuple[tuple[int, int], ...]
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield (path, status) of every file, unsorted; `above` breaks loops of links."""
    try:
        here = os.stat(folder)  # noqa: PTH116
        identity = (here.st_dev, here.st_ino)
        if identity in above:
            return
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            below = f"{path}/{entry.name}" if path else entry.name
            if entry.is_dir():
                yield from _walk(entry.path, below, (*above, identity))
            elif entry.is_file() and not is_litter(entry.name):
                try:
                    status = entry.stat()
                except FileNotFoundError:  # deleted since the folder was listed
                    continue
                yield below, status


def _info(path: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(
        path=path,
        size_bytes=status.st_size,
        etag=f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}",
        modified_s=status.st_mtime,
    )
