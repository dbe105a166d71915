"""A folder of block files, shared by every process and job of a host, within a byte limit.

    FOLDER/usage     bytes taken so far, 8 bytes; its flock guards it and the eviction
    FOLDER/writing/  files being written
    FOLDER/ab/...    block files; a file's modification time says when it was last of use

The count may run ahead of the truth (a killed process wrote less than it took), never far behind:
a process takes space in advance, and each eviction counts anew.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.data.storage.atomic import clear_litter
from headrace.data.storage.block_file import DamagedError, Loaded, load_block, save_block

_USAGE = struct.Struct("<q")
_ADVANCE_SHARE = 256  # a process takes this part of the limit at a time
_KEEP_SHARE = 0.9  # of the limit, after an eviction; the rest covers what others took in advance
_TOUCH_AFTER_S = 300.0


class BlockFolder:
    """Block files by name. Any process may read and write at any time.

    Args:
        folder: Where they lie (see `prepare`).
        limit_bytes: How much they may take together.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._advance_bytes = 0

    def load(self, name: str, start: int, length: int) -> Loaded | None:
        """Return bytes of a block, verified, as far as it goes; None where there is no whole one.

        Raises:
            OSError: The disk fails.
        """
        file = self._path(name)
        try:
            loaded = load_block(file, start, length)
            self._touch(file)
        except FileNotFoundError:
            return None
        except DamagedError:
            self.drop(name)
            return None
        return loaded

    def save(self, name: str, identity: bytes, data: memoryview) -> bool:
        """Write a block; False where there is no room now (another process makes some).

        Raises:
            OSError: The disk is full, read-only or gone.
        """
        size_bytes = len(data) + len(data) // 2**13 + 4096  # header and the disk's own blocks
        if not self._take(size_bytes):
            return False
        save_block(Path(self._path(name)), self._folder / "writing", identity, data)
        return True

    def drop(self, name: str) -> None:
        """Remove a block, if it can be."""
        with suppress(OSError):
            os.unlink(self._path(name))  # noqa: PTH108

    def prepare(self) -> None:
        """Make the folder, and remove what killed processes left half-written.

        Raises:
            OSError: It cannot be made.
        """
        (self._folder / "writing").mkdir(parents=True, exist_ok=True)
        clear_litter(self._folder / "writing")

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name[:2]}/{name[2:]}"

    def _touch(self, file: str) -> None:
        now = time.time()
        with suppress(OSError):  # evicted meanwhile, or read-only
            if now - os.stat(file).st_mtime > _TOUCH_AFTER_S:  # noqa: PTH116
                os.utime(file)

    def _take(self, size_bytes: int) -> bool:
        """Take room for a block; where the limit is reached, evict what was not used longest."""
        if size_bytes <= self._advance_bytes:
            self._advance_bytes -= size_bytes
            return True
        wanted = max(size_bytes, self._limit_bytes // _ADVANCE_SHARE)
        if wanted > self._limit_bytes:
            return False
        with self._usage() as descriptor:
            if descriptor is None:
                return False
            used = _read_usage(descriptor)
            if used is None or used + wanted > self._limit_bytes:
                used = self._evict(wanted)
            os.pwrite(descriptor, _USAGE.pack(used + wanted), 0)
        self._advance_bytes += wanted - size_bytes
        return True

    @contextmanager
    def _usage(self) -> Iterator[int | None]:
        """Hold the usage file; None while another process does."""
        descriptor = os.open(self._folder / "usage", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            yield descriptor
        finally:
            with suppress(OSError):  # to close it is not enough: a child forked meanwhile has it
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _evict(self, wanted: int) -> int:
        """Remove the blocks not used longest until `wanted` fits; return the size of the rest."""
        keep_bytes = max(0, int(self._limit_bytes * _KEEP_SHARE) - wanted)
        blocks = sorted(self._blocks())
        used = sum(size_bytes for _, size_bytes, _ in blocks)
        for _, size_bytes, file in blocks:
            if used <= keep_bytes:
                break
            with suppress(OSError):
                os.unlink(file)  # noqa: PTH108
                used -= size_bytes
        return used

    def _blocks(self) -> Iterator[tuple[float, int, str]]:
        """Yield (last use, bytes, file) of every block."""
        for folder in os.scandir(self._folder):
            if len(folder.name) != 2 or not folder.is_dir():
                continue
            for entry in os.scandir(folder.path):
                with suppress(OSError):  # removed meanwhile
                    status = entry.stat()
                    yield status.st_mtime, max(status.st_size, status.st_blocks * 512), entry.path


def _read_usage(descriptor: int) -> int | None:
    data = os.pread(descriptor, _USAGE.size, 0)
    return _USAGE.unpack(data)[0] if len(data) == _USAGE.size else None
