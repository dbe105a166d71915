"""A large object on its way: its parts land where they belong, and those that did are noted."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from contextlib import suppress
from uuid import uuid4

from headrace.core.hashes import sha256
from headrace.data.copies.folders import CacheFolders
from headrace.data.copies.listing import version_of
from headrace.data.copies.objects import PART_BYTES
from headrace.data.storage import ObjectInfo, safe_url


class Draft:
    """A file of an object's length, and beside it the SHA-256 of each part that is written.

    After a kill the parts whose bytes still have their hash are kept.

    Args:
        folders: The cache's.
        base: The URL below which the object lies.
        info: The object.

    Attributes:
        info: The object.
        file: The file.
        descriptor: It, open.
        left: How many parts are still to come, as whoever fetches them counts.
    """

    def __init__(self, folders: CacheFolders, base: str, info: ObjectInfo) -> None:
        self.info = info
        self.left = 0
        state = sha256()
        named = [safe_url(base), info.path, version_of(info), info.size_bytes]
        state.update(json.dumps(named).encode())
        self.file = f"{folders.folder}/drafts/{state.hexdigest()[:32]}"
        self.descriptor = _open(self.file)
        if not _locked(self.descriptor, self.file):  # another job fetches the same object
            os.close(self.descriptor)
            self.file += f"-{uuid4().hex}"
            self.descriptor = _open(self.file)
            _locked(self.descriptor, self.file)
        self._notes = os.open(
            f"{self.file}.parts", os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        self._digests: dict[int, bytes] = {}
        self._count = -(-info.size_bytes // PART_BYTES)
        self._noting = threading.Lock()

    def resume(self) -> int:
        """Keep what an earlier process wrote; return how many bytes that is."""
        noted = {}
        for line in os.pread(self._notes, 2**27, 0).splitlines():
            with suppress(ValueError):
                number, digest = json.loads(line)
                noted[number] = bytes.fromhex(digest)
        for number, digest in noted.items():
            start, length = self.span(number)
            data = os.pread(self.descriptor, length, start)
            if hashlib.sha256(data).digest() == digest:
                self._digests[number] = digest
        os.ftruncate(self.descriptor, self.info.size_bytes)
        return sum(self.span(number)[1] for number in self._digests)

    def missing(self) -> list[int]:
        """Return the parts that are still to come."""
        return [number for number in range(self._count) if number not in self._digests]

    def digests(self) -> list[bytes]:
        """Return the SHA-256 of each part, in order."""
        return [self._digests[number] for number in range(self._count)]

    def span(self, number: int) -> tuple[int, int]:
        """Return where a part begins and how long it is."""
        start = number * PART_BYTES
        return start, min(PART_BYTES, self.info.size_bytes - start)

    def write(self, number: int, data: memoryview) -> None:
        """Write a part, then note it; raises OSError."""
        digest = hashlib.sha256(data).digest()
        at, _ = self.span(number)
        while len(data):
            written = os.pwrite(self.descriptor, data, at)
            data, at = data[written:], at + written
        with self._noting:
            os.write(self._notes, f"\n{json.dumps([number, digest.hex()])}".encode())
            self._digests[number] = digest

    def close(self) -> None:
        """Close it; the file has another name by now."""
        os.unlink(f"{self.file}.parts")  # noqa: PTH108
        os.close(self._notes)
        os.close(self.descriptor)


def _open(file: str) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _locked(descriptor: int, file: str) -> bool:
    """Lock a file; False where another process has it, or took it away meanwhile."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.stat(file).st_ino == os.fstat(descriptor).st_ino  # noqa: PTH116
    except (BlockingIOError, FileNotFoundError):
        return False
