"""Block files on disk: their format, their folder within a byte limit, and their writer thread.

A block file holds magic, identity of the object's content, length, page size, then one CRC-32C a
page, then a CRC-32C of all that; then the data. A read checks only the pages it touches. A file
truncated by a crash, or damaged, fails its checks and counts as missing.

    FOLDER/usage     bytes taken so far, 8 bytes; its flock guards it and the eviction
    FOLDER/writing/  files being written
    FOLDER/ab/...    block files; a file's modification time is that of its last use

The count may exceed the truth (a killed process wrote less than it took), but is never far below: a
process takes space in advance, and each eviction counts again.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue

import google_crc32c

from headrace.core.file_lock import open_lock_file, try_lock, unlock
from headrace.core.files import remove_abandoned_files, write_atomically

_MAGIC = b"headrac1"
_FIXED = struct.Struct("<8s16sQI")
_CRC = struct.Struct("<I")
_PAGE_BYTES = 2**16
_FIRST_READ_BYTES = 2**12  # holds the header of blocks up to 60 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBlock:
    """The bytes read from a block file.

    Attributes:
        identity: The identity of the object's content, 16 bytes.
        data: The requested bytes; fewer where the block ends before.
    """

    identity: bytes
    data: memoryview


class DamagedBlockError(Exception):
    """The file is not a complete block."""


def load_block(file: str, start: int, length: int) -> LoadedBlock:
    """Return the verified bytes [start, start + length) of a block, fewer at its end.

    Raises:
        FileNotFoundError: There is no such block.
        DamagedBlockError: The file is damaged.
        OSError: It cannot be read.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        header = os.pread(descriptor, _FIRST_READ_BYTES, 0)
        identity, size, crcs = _parse(header)
        end = min(start + length, size)
        first = start // _PAGE_BYTES
        last = -(-end // _PAGE_BYTES)
        from_byte, to_byte = first * _PAGE_BYTES, min(last * _PAGE_BYTES, size)
        data_at = _FIXED.size + (len(crcs) + 1) * _CRC.size
        pages = os.pread(descriptor, max(0, to_byte - from_byte), data_at + from_byte)
    finally:
        os.close(descriptor)
    if len(pages) != max(0, to_byte - from_byte):
        raise DamagedBlockError
    for number in range(first, last):
        at = (number - first) * _PAGE_BYTES
        if google_crc32c.value(pages[at : at + _PAGE_BYTES]) != crcs[number]:
            raise DamagedBlockError
    return LoadedBlock(
        identity=identity, data=memoryview(pages)[start - from_byte : end - from_byte]
    )


def save_block(file: Path, litter: Path, identity: bytes, data: memoryview) -> int:
    """Write a block, complete or not at all; return the file's size in bytes.

    Args:
        file: Path of the block file.
        litter: A folder on the same disk for the temporary file.
        identity: The identity of the object's content.
        data: The block.

    Raises:
        OSError: The disk is full, read-only or missing; no file is left behind.
    """
    header = block_header(identity, data)
    write_atomically(file, [header, data], durable=False, temporary_dir=litter)
    return len(header) + len(data)


def block_header(identity: bytes, data: memoryview) -> bytes:
    """Return the bytes before the data of a block file."""
    crcs = [
        google_crc32c.value(bytes(data[start : start + _PAGE_BYTES]))
        for start in range(0, len(data), _PAGE_BYTES)
    ]
    header = _FIXED.pack(_MAGIC, identity, len(data), _PAGE_BYTES)
    header += struct.pack(f"<{len(crcs)}I", *crcs)
    return header + _CRC.pack(google_crc32c.value(header))


def _parse(header: bytes) -> tuple[bytes, int, tuple[int, ...]]:
    if len(header) < _FIXED.size:
        raise DamagedBlockError
    magic, identity, size, page_bytes = _FIXED.unpack_from(header)
    pages = -(-size // _PAGE_BYTES)
    crc_at = _FIXED.size + pages * _CRC.size
    if magic != _MAGIC or page_bytes != _PAGE_BYTES or len(header) < crc_at + _CRC.size:
        raise DamagedBlockError
    if _CRC.unpack_from(header, crc_at)[0] != google_crc32c.value(header[:crc_at]):
        raise DamagedBlockError
    return identity, size, struct.unpack_from(f"<{pages}I", header, _FIXED.size)


_USAGE = struct.Struct("<q")
_ADVANCE_SHARE = 256  # a process reserves this part of the limit at a time
_KEEP_SHARE = 0.9  # of the limit, after an eviction; the rest covers others' reservations
_TOUCH_AFTER_S = 300.0


class BlockFolder:
    """Block files by name. Any process may read and write at any time.

    Args:
        folder: The folder (see `prepare`).
        limit_bytes: Limit of all blocks together.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._advance_bytes = 0

    def load(self, name: str, start: int, length: int) -> LoadedBlock | None:
        """Return verified bytes of a block, fewer at its end; None where it is missing or damaged.

        Raises:
            OSError: The disk fails.
        """
        file = self._path(name)
        try:
            loaded = load_block(file, start, length)
            self._touch(file)
        except FileNotFoundError:
            return None
        except DamagedBlockError:
            self.drop(name)
            return None
        return loaded

    def save(self, name: str, identity: bytes, data: memoryview) -> bool:
        """Write a block; False where there is no room now (another process evicts).

        Raises:
            OSError: The disk is full, read-only or missing.
        """
        size_bytes = len(data) + len(data) // 2**13 + 4096  # header and the disk's own blocks
        if not self._take(size_bytes):
            return False
        save_block(Path(self._path(name)), self._folder / "writing", identity, data)
        return True

    def drop(self, name: str) -> None:
        """Remove a block, ignoring errors."""
        with suppress(OSError):
            os.unlink(self._path(name))  # noqa: PTH108

    def prepare(self) -> None:
        """Create the folder, and remove unfinished files of killed processes.

        Raises:
            OSError: It cannot be created.
        """
        (self._folder / "writing").mkdir(parents=True, exist_ok=True)
        remove_abandoned_files(self._folder / "writing")

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name[:2]}/{name[2:]}"

    def _touch(self, file: str) -> None:
        now = time.time()
        with suppress(OSError):  # evicted meanwhile, or read-only
            if now - os.stat(file).st_mtime > _TOUCH_AFTER_S:  # noqa: PTH116
                os.utime(file)

    def _take(self, size_bytes: int) -> bool:
        """Reserve room for a block; where the limit is reached, evict the least recently used."""
        if size_bytes <= self._advance_bytes:
            self._advance_bytes -= size_bytes
            return True
        reserved = max(size_bytes, self._limit_bytes // _ADVANCE_SHARE)
        if reserved > self._limit_bytes:
            return False
        with self._usage() as descriptor:
            if descriptor is None:
                return False
            used = _read_usage(descriptor)
            if used is None or used + reserved > self._limit_bytes:
                used = self._evict(reserved)
            os.pwrite(descriptor, _USAGE.pack(used + reserved), 0)
        self._advance_bytes += reserved - size_bytes
        return True

    @contextmanager
    def _usage(self) -> Iterator[int | None]:
        """Lock the usage file; yield None while another process holds the lock."""
        descriptor = open_lock_file(self._folder / "usage")
        try:
            yield descriptor if try_lock(descriptor) else None
        finally:
            unlock(descriptor)
            os.close(descriptor)

    def _evict(self, needed: int) -> int:
        """Remove the least recently used blocks until `needed` fits; return the rest's size."""
        keep_bytes = max(0, int(self._limit_bytes * _KEEP_SHARE) - needed)
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


_MAX_PENDING_BLOCKS = 256  # 64 MiB of the usual size; further blocks are not cached
_PAUSE_S = 60.0  # after the disk failed
_IDLE_S = 5.0

_log = logging.getLogger("headrace.storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Byte counts of a cached store in this process.

    Attributes:
        hit_bytes: Read from the disk.
        miss_bytes: Read from the store.
        written_bytes: Written to the disk.
        skipped_bytes: Read from the store and not written: no room, or the disk is too slow.
    """

    hit_bytes: int = 0
    miss_bytes: int = 0
    written_bytes: int = 0
    skipped_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _PendingWrite:
    """A block that waits to be written."""

    name: str
    identity: bytes
    data: memoryview
    on_written: Callable[[], object]


class BlockWriter:
    """Reads and writes a block folder without ever failing the reader.

    A thread of its own writes the blocks; it starts with the first and ends when there are none for
    a while. After a failure of the disk, writing pauses for a minute.
    """

    def __init__(self, folder: BlockFolder) -> None:
        self._folder = folder
        self._queue: Queue[_PendingWrite | str] = Queue(
            _MAX_PENDING_BLOCKS
        )  # a name: to be removed
        self._unwanted: set[str] = set()  # not removed yet
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._prepared = False
        self._paused_until = 0.0
        self._warned = False
        self._hit = self._miss = self._written = self._skipped = 0

    def stats(self) -> CacheStats:
        """Return the counts so far."""
        return CacheStats(
            hit_bytes=self._hit,
            miss_bytes=self._miss,
            written_bytes=self._written,
            skipped_bytes=self._skipped,
        )

    def load(self, name: str, start: int, length: int) -> LoadedBlock | None:
        """Return bytes of a block, or None where it is missing or damaged."""
        if name in self._unwanted:
            return None
        try:
            loaded = self._folder.load(name, start, length)
        except OSError as error:
            self._warn(error)
            return None
        if loaded is not None:
            self._hit += len(loaded.data)
        return loaded

    def offer(
        self, name: str, identity: bytes, data: memoryview, on_written: Callable[[], object]
    ) -> None:
        """Write a block soon, or not at all; then call `on_written`."""
        self._miss += len(data)
        waiting = _PendingWrite(name=name, identity=identity, data=data, on_written=on_written)
        is_paused = not len(data) or time.monotonic() < self._paused_until
        if is_paused or not self._enqueue(waiting):
            self._skipped += len(data)
            on_written()

    def drop(self, name: str) -> None:
        """Remove a block, also one that waits to be written, in the background.

        From now on it is not loaded. If the queue is full it is never removed: this process does
        not read it, and other processes verify it themselves.
        """
        self._unwanted.add(name)
        self._enqueue(name)

    def settle(self) -> None:
        """Wait until all offered blocks are written or skipped."""
        self._queue.join()

    def _enqueue(self, item: _PendingWrite | str) -> bool:
        try:
            self._queue.put_nowait(item)
        except Full:
            return False
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="headrace-cache", daemon=True)
                thread.start()
                self._thread = thread
        return True

    def _run(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=_IDLE_S)
            except Empty:
                with self._lock:
                    if self._queue.empty():
                        self._thread = None
                        return
                continue
            try:
                if isinstance(item, str):
                    self._folder.drop(item)
                    self._unwanted.discard(item)
                else:
                    self._write(item)
                    item.on_written()
            finally:
                self._queue.task_done()

    def _write(self, waiting: _PendingWrite) -> None:
        data = waiting.data
        try:
            if not self._prepared:
                self._folder.prepare()
                self._prepared = True
            written = self._folder.save(waiting.name, waiting.identity, data)
        except OSError as error:
            written = False
            self._prepared = False  # the folder may have been removed
            self._paused_until = time.monotonic() + _PAUSE_S
            self._warn(error)
        if written:
            self._written += len(data)
        else:
            self._skipped += len(data)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "The disk cache fails (%s: %s). Reads go straight to the store; free or mount the "
                "disk, or choose another cache_dir.",
                error.filename or "disk",
                error.strerror or error,
            )
