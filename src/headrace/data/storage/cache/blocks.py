"""Block files on disk: their folder within a byte limit, and their writer thread.

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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, Full, Queue

from headrace.core.file_lock import open_lock_file, try_lock, unlock
from headrace.core.files import remove_abandoned_files
from headrace.data.storage.cache.block_file import (
    Block,
    DamagedBlockError,
    load_block,
    save_block,
)

_USAGE = struct.Struct("<q")
_ADVANCE_SHARE = 256  # a process reserves this part of the limit at a time
_KEEP_SHARE = 0.9  # of the limit, after an eviction; the rest covers others' reservations
_TOUCH_AFTER_S = 300.0


class BlockFolder:
    """Block files by name, up to a limit together. Any process may read and write at any time."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._advance_bytes = 0

    def load(self, name: str, start: int, length: int) -> Block | None:
        """Return verified bytes of a block, fewer at its end; None if it is missing or damaged."""
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
        """Write a block; False where there is no room now (another process evicts)."""
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
        """Create the folder, and remove unfinished files of killed processes."""
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
            data = os.pread(descriptor, _USAGE.size, 0)
            used = _USAGE.unpack(data)[0] if len(data) == _USAGE.size else self._limit_bytes
            if used + reserved > self._limit_bytes:
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


_MAX_PENDING_BLOCKS = 256  # 64 MiB of the usual size; further blocks are not cached
_PAUSE_S = 60.0  # after the disk failed
_IDLE_S = 5.0

_log = logging.getLogger("headrace.storage")


@dataclass(slots=True, kw_only=True)
class CacheStats:
    """Byte counts of a cached store in this process."""

    hit_bytes: int = 0  # read from the disk
    miss_bytes: int = 0  # read from the store
    written_bytes: int = 0  # to the disk
    skipped_bytes: int = 0  # read from the store, not written: no room, or the disk is too slow


class BlockWriter:
    """Reads and writes a block folder without ever failing the reader.

    A thread of its own writes the blocks; it starts with the first and ends when there are none for
    a while. After a failure of the disk, writing pauses for a minute.
    """

    def __init__(self, folder: BlockFolder) -> None:
        self._folder = folder
        self._queue: Queue[Callable[[], None]] = Queue(_MAX_PENDING_BLOCKS)
        self._unwanted: set[str] = set()  # not removed yet
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._prepared = False
        self._paused_until = 0.0
        self._warned = False
        self._stats = CacheStats()

    def stats(self) -> CacheStats:
        """Return the counts so far."""
        return replace(self._stats)

    def load(self, name: str, start: int, length: int) -> Block | None:
        """Return bytes of a block, or None where it is missing or damaged."""
        if name in self._unwanted:
            return None
        try:
            loaded = self._folder.load(name, start, length)
        except OSError as error:
            self._warn(error)
            return None
        if loaded is not None:
            self._stats.hit_bytes += len(loaded.data)
        return loaded

    def offer(
        self, name: str, identity: bytes, data: memoryview, on_written: Callable[[], object]
    ) -> None:
        """Write a block soon, or not at all; then call `on_written`."""
        self._stats.miss_bytes += len(data)
        write = partial(self._write, name, identity, data, on_written)
        is_paused = not len(data) or time.monotonic() < self._paused_until
        if is_paused or not self._enqueue(write):
            self._stats.skipped_bytes += len(data)
            on_written()

    def drop(self, name: str) -> None:
        """Remove a block, also one that waits to be written, in the background.

        From now on it is not loaded. If the queue is full it is never removed: this process does
        not read it, and other processes verify it themselves.
        """
        self._unwanted.add(name)
        self._enqueue(partial(self._remove, name))

    def settle(self) -> None:
        """Wait until all offered blocks are written or skipped."""
        self._queue.join()

    def _enqueue(self, work: Callable[[], None]) -> bool:
        try:
            self._queue.put_nowait(work)
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
                work = self._queue.get(timeout=_IDLE_S)
            except Empty:
                with self._lock:
                    if self._queue.empty():
                        self._thread = None
                        return
                continue
            try:
                work()
            finally:
                self._queue.task_done()

    def _remove(self, name: str) -> None:
        self._folder.drop(name)
        self._unwanted.discard(name)

    def _write(
        self, name: str, identity: bytes, data: memoryview, on_written: Callable[[], object]
    ) -> None:
        try:
            if not self._prepared:
                self._folder.prepare()
                self._prepared = True
            written = self._folder.save(name, identity, data)
        except OSError as error:
            written = False
            self._prepared = False  # the folder may have been removed
            self._paused_until = time.monotonic() + _PAUSE_S
            self._warn(error)
        if written:
            self._stats.written_bytes += len(data)
        else:
            self._stats.skipped_bytes += len(data)
        on_written()

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "The disk cache fails (%s: %s). Reads go straight to the store; free or mount the "
                "disk, or choose another cache_dir.",
                error.filename or "disk",
                error.strerror or error,
            )
