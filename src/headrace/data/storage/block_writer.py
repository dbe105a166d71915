"""Reads of a block folder that never fail, and writes behind the reader's back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, Full, Queue

from headrace.data.storage.block_file import Loaded
from headrace.data.storage.block_folder import BlockFolder

_WAITING_BLOCKS = 256  # 64 MiB of the usual size; what does not fit is not cached
_PAUSE_S = 60.0  # after the disk failed
_IDLE_S = 5.0

_log = logging.getLogger("headrace.storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """What a cached store did in this process, bytes.

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
class _Waiting:
    """A block to write."""

    name: str
    identity: bytes
    data: memoryview
    landed: Callable[[], object]


class BlockWriter:
    """A block folder used without ever failing the reader.

    Blocks are written by a thread of their own, which starts with the first and ends when there
    are none for a while. After a failure of the disk, writing pauses for a minute.
    """

    def __init__(self, folder: BlockFolder) -> None:
        self._folder = folder
        self._queue: Queue[_Waiting | str] = Queue(_WAITING_BLOCKS)  # a name: to be removed
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

    def load(self, name: str, start: int, length: int) -> Loaded | None:
        """Return bytes of a block, or None where there is none that is whole."""
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
        self, name: str, identity: bytes, data: memoryview, landed: Callable[[], object]
    ) -> None:
        """Write a block soon, or not at all; then call `landed`."""
        self._miss += len(data)
        waiting = _Waiting(name=name, identity=identity, data=data, landed=landed)
        is_paused = not len(data) or time.monotonic() < self._paused_until
        if is_paused or not self._wait_in_line(waiting):
            self._skipped += len(data)
            landed()

    def drop(self, name: str) -> None:
        """Remove a block, and one of that name that waits to be written; nobody waits for that.

        From now on it is not loaded. Where too much waits it is never removed: this process does
        without, and others find out for themselves that it is damaged.
        """
        self._unwanted.add(name)
        self._wait_in_line(name)

    def settle(self) -> None:
        """Return when everything offered is written or given up."""
        self._queue.join()

    def _wait_in_line(self, item: _Waiting | str) -> bool:
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
                    item.landed()
            finally:
                self._queue.task_done()

    def _write(self, waiting: _Waiting) -> None:
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
