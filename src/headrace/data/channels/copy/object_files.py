"""The cache of channels' objects by content hash: links, partial downloads, the index of hashes."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from headrace.core.file_lock import open_lock_file, try_lock
from headrace.core.files import write_all
from headrace.core.lazy import sha256
from headrace.data.channels.copy.cache_dir import UNMODIFIED_NS, CacheDir
from headrace.data.channels.listing import content_key
from headrace.data.storage import ObjectInfo, safe_url

PART_BYTES = 8 * 2**20
"""Longer objects are fetched, written and hashed in parts of this size, which names depend on."""
_NO_HARD_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV}
_FICLONE = 0x40049409  # <linux/fs.h>: the copy shares blocks, where the disk supports it
_READ_ONLY = 0o444


def content_name(digests: list[bytes], size_bytes: int) -> str:
    """Return the name of a content: the SHA-256 of its one part, or of its parts' SHA-256."""
    if len(digests) == 1:
        return digests[0].hex()
    state = sha256()
    state.update(size_bytes.to_bytes(8, "big"))
    for digest in digests:
        state.update(digest)
    return str(state.hexdigest())


def is_unmodified(file: str, size_bytes: int) -> bool:
    """Return whether a file was placed completely and not written to since."""
    try:
        status = os.stat(file, follow_symlinks=False)  # noqa: PTH116  (called for 100,000 files)
    except OSError:
        return False
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_size == size_bytes
        and status.st_mtime_ns == UNMODIFIED_NS
    )


class ObjectFiles:
    """The objects of a cache; any thread of any process may add some at any time."""

    def __init__(self, folders: CacheDir) -> None:
        self._folders = folders
        self._made: set[str] = set()

    def link(self, content: str, size_bytes: int, place: str) -> bool:
        """Link a path to the object of a content; False where the cache lacks it."""
        file = self._folders.object_file(content)
        if not is_unmodified(file, size_bytes):
            return False
        try:
            self._link(file, place)
        except FileNotFoundError:  # another process has just removed it
            return False
        return True

    def place(self, content: str, data: memoryview, place: str) -> None:
        """Write data to a path and share it as an object; raises OSError.

        The file is written in place. Until it is complete it lacks the modification time of
        complete files, and no tree with it is marked complete.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            descriptor = os.open(place, flags, _READ_ONLY)
        except FileExistsError:  # unfinished, or written to later
            os.unlink(place)  # noqa: PTH108
            descriptor = os.open(place, flags, _READ_ONLY)
        try:
            write_all(descriptor, data)
            os.utime(descriptor, ns=(UNMODIFIED_NS, UNMODIFIED_NS))
        finally:
            os.close(descriptor)
        self._share(content, len(data), place)

    def place_draft(self, draft: str, descriptor: int, content: str, place: str) -> None:
        """Move a draft to a path and share it as an object."""
        os.fchmod(descriptor, _READ_ONLY)
        os.utime(descriptor, ns=(UNMODIFIED_NS, UNMODIFIED_NS))
        os.rename(draft, place)  # noqa: PTH104
        self._share(content, os.fstat(descriptor).st_size, place)

    def _share(self, content: str, size_bytes: int, place: str) -> None:
        """Add a tree's file to the cache as an object, or replace it by the existing object."""
        file = self._folders.object_file(content)
        if content[:2] not in self._made:
            os.makedirs(os.path.dirname(file), exist_ok=True)  # noqa: PTH103, PTH120
            self._made.add(content[:2])
        try:
            os.link(place, file)
        except FileExistsError:
            if not self.link(content, size_bytes, place):  # it was written to
                os.unlink(file)  # noqa: PTH108
                os.link(place, file)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:  # without links only the tree has the file
                raise

    def _link(self, file: str, place: str) -> None:
        """Link a file to a path, or copy it where the disk allows no more links."""
        # In another folder: a killed process must not leave a file among a channel's.
        temporary = f"{self._folders.folder}/drafts/link-{uuid4().hex}"
        try:
            os.link(file, place)
        except FileExistsError:  # replaced atomically: readers find one or the other
            os.link(file, temporary)
            os.replace(temporary, place)  # noqa: PTH105
            with suppress(FileNotFoundError):  # one file under both names: rename leaves both
                os.unlink(temporary)  # noqa: PTH108
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            _copy(file, temporary)
            os.replace(temporary, place)  # noqa: PTH105


def _copy(file: str, place: str) -> None:
    """Copy a file; the copy shares the disk's blocks where possible."""
    with open(file, "rb") as source, open(place, "wb") as copy:  # noqa: PTH123
        try:
            fcntl.ioctl(copy.fileno(), _FICLONE, source.fileno())
        except OSError:
            shutil.copyfileobj(source, copy, PART_BYTES)
    os.chmod(place, _READ_ONLY)  # noqa: PTH101
    os.utime(place, ns=(UNMODIFIED_NS, UNMODIFIED_NS))


class PartialObject:
    """A draft: a file of an object's length, and beside it the SHA-256 of each written part.

    After a kill the parts whose bytes still match their hash are kept. `base` is the URL that the
    object's path is below.
    """

    def __init__(self, folders: CacheDir, base: str, info: ObjectInfo) -> None:
        self.info = info
        self.left = 0  # missing parts, counted by the fetcher
        state = sha256()
        state.update(json.dumps([safe_url(base), *content_key(info)]).encode())
        self.file = f"{folders.folder}/drafts/{state.hexdigest()[:32]}"
        self.descriptor = open_lock_file(self.file, 0o600)
        if not _lock_partial(self.descriptor, self.file):  # another job fetches the same object
            os.close(self.descriptor)
            self.file += f"-{uuid4().hex}"
            self.descriptor = open_lock_file(self.file, 0o600)
            _lock_partial(self.descriptor, self.file)
        self._parts_file = os.open(
            f"{self.file}.parts", os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        self._digests: dict[int, bytes] = {}
        self._count = -(-info.size_bytes // PART_BYTES)
        self._lock = threading.Lock()

    def resume(self) -> int:
        """Keep the valid parts of an earlier process; return their bytes."""
        recorded = {}
        for line in os.pread(self._parts_file, 2**27, 0).splitlines():
            with suppress(ValueError):
                number, digest = json.loads(line)
                recorded[number] = bytes.fromhex(digest)
        for number, digest in recorded.items():
            start, length = self.span(number)
            data = os.pread(self.descriptor, length, start)
            if hashlib.sha256(data).digest() == digest:
                self._digests[number] = digest
        os.ftruncate(self.descriptor, self.info.size_bytes)
        return sum(self.span(number)[1] for number in self._digests)

    def missing(self) -> list[int]:
        """Return the numbers of the missing parts."""
        return [number for number in range(self._count) if number not in self._digests]

    def digests(self) -> list[bytes]:
        """Return the SHA-256 of each part, in order."""
        return [self._digests[number] for number in range(self._count)]

    def span(self, number: int) -> tuple[int, int]:
        """Return the start and length of a part."""
        start = number * PART_BYTES
        return start, min(PART_BYTES, self.info.size_bytes - start)

    def write(self, number: int, data: memoryview) -> None:
        """Write a part, then record it; raises OSError."""
        digest = hashlib.sha256(data).digest()
        offset, _ = self.span(number)
        while len(data):
            written = os.pwrite(self.descriptor, data, offset)
            data, offset = data[written:], offset + written
        with self._lock:
            os.write(self._parts_file, f"\n{json.dumps([number, digest.hex()])}".encode())
            self._digests[number] = digest

    def close(self) -> None:
        """Close the draft; its file was renamed."""
        os.unlink(f"{self.file}.parts")  # noqa: PTH108
        os.close(self._parts_file)
        os.close(self.descriptor)


def _lock_partial(descriptor: int, file: str) -> bool:
    """Lock a file; False where another process holds it, or has renamed it meanwhile."""
    if not try_lock(descriptor):
        return False
    try:
        is_same = os.stat(file).st_ino == os.fstat(descriptor).st_ino  # noqa: PTH116
    except FileNotFoundError:
        return False
    return is_same


class ContentRecords:
    """A file of contents to which any process appends lines; incomplete lines are skipped.

    It belongs to a URL that the objects' paths are below, without its secrets. Unless `is_read` it
    is only appended to.
    """

    def __init__(self, folders: CacheDir, url: str, *, is_read: bool = True) -> None:
        state = sha256()
        state.update(safe_url(url).rstrip("/").encode())
        self._file: Path = folders.folder / "known" / state.hexdigest()[:32]
        self._contents = self._read() if is_read else {}
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(self._file, flags, 0o644)

    def get(self, info: ObjectInfo) -> str | None:
        """Return the content of an object; None if it was never fetched."""
        return self._contents.get(content_key(info))

    def add(self, contents: Sequence[tuple[ObjectInfo, str]]) -> None:
        """Record the contents of objects that are on disk; raises OSError."""
        lines = []
        for info, content in contents:
            key = content_key(info)
            self._contents[key] = content
            # The newline comes first, so that an incomplete line spoils no complete one.
            lines.append(f"\n{json.dumps([*key, content])}")
        os.write(self._descriptor, "".join(lines).encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _read(self) -> dict[tuple[str, str, int], str]:
        contents = {}
        try:
            lines = self._file.read_bytes().splitlines()
        except FileNotFoundError:
            return {}
        for line in lines:
            try:
                path, version, size_bytes, content = json.loads(line)
            except ValueError:
                continue
            contents[path, version, size_bytes] = content
        return contents
