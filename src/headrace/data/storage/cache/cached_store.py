"""A store that reads through blocks on a local disk."""

from __future__ import annotations

import builtins
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from headrace.core.errors import CorruptError, HeadraceError, UsageError
from headrace.core.lazy import blake2b
from headrace.data.storage.cache.block_file import Block
from headrace.data.storage.cache.blocks import BlockFolder, BlockWriter, CacheStats
from headrace.data.storage.store import (
    Buffer,
    CacheableStore,
    ObjectInfo,
    Part,
    PutData,
    Store,
    check_range,
    done_future,
)


class CachedRead:
    """The read of a range, cut at block boundaries."""

    def __init__(self, path: str, start: int, length: int, block_bytes: int) -> None:
        self.path = path
        self.numbers = range(start // block_bytes, (start + length - 1) // block_bytes + 1)
        self.tries = 0  # how often its blocks were gathered
        self.result: Future[Buffer] = Future()
        self.result.set_running_or_notify_cancel()
        self._start = start
        self._length = length
        self._block_bytes = block_bytes
        self._lock = threading.Lock()
        self._blocks: dict[int, Block] = {}
        self._missing = 0

    def within(self, number: int) -> tuple[int, int]:
        """Return the (start, length) of the range's part in block `number`."""
        begin = max(self._start - number * self._block_bytes, 0)
        end = min(self._start + self._length - number * self._block_bytes, self._block_bytes)
        return begin, end - begin

    def gather(
        self,
        found: Mapping[int, Block],
        coming: Mapping[int, Future[Block]],
        finish: Callable[[CachedRead], None],
    ) -> None:
        """Call `finish` once all blocks have arrived; the first failure fails the read."""
        self.tries += 1
        self._blocks = dict(found)
        self._missing = len(coming)
        if not coming:
            finish(self)
            return

        def arrived(number: int, done: Future[Block]) -> None:
            error = done.exception()
            with self._lock:
                self._missing -= 1
                last = self._missing == 0
                if error is None:
                    self._blocks[number] = done.result()
            if error is not None:
                self.fail(error)
            elif last and not self.result.done():
                finish(self)

        for number, future in coming.items():
            future.add_done_callback(partial(arrived, number))

    def is_of_one_content(self) -> bool:
        """Return whether all blocks belong to the same content of the object."""
        return len({block.identity for block in self._blocks.values()}) == 1

    def deliver(self, url: str) -> None:
        """Set the result from the blocks; CorruptError where the object ends before the range."""
        pieces = [self._piece(number) for number in self.numbers]
        if sum(map(len, pieces)) == self._length:
            whole = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
            self.result.set_result(whole)
            return
        end = self._start + self._length - 1
        self.fail(
            CorruptError(
                f"{url}/{self.path} (bytes {self._start}-{end}): the object is shorter than the "
                "range. Was it replaced, or is it not what the index says?"
            )
        )

    def fail(self, error: BaseException) -> None:
        """Set the error, unless there is a result."""
        with self._lock:
            if not self.result.done():
                self.result.set_exception(error)

    def _piece(self, number: int) -> memoryview:
        start, length = self.within(number)
        block = self._blocks[number]
        return block.data[start - block.start : start - block.start + length]


BLOCK_BYTES = 256 * 2**10
_SPAN_BYTES = 8 * 2**20  # adjacent missing blocks share one request up to this size
_MOST_OBJECTS = 2**16  # whose identities a process remembers


class CachedStore(Store):
    """A store that caches its reads as blocks on disk, shared by all processes of the host.

    A block is named by the object's URL and stores which content it belongs to (etag and size): the
    first time a process finds blocks of an object it requests these once from the store, and blocks
    of older content are fetched again, so old and new never mix. An object without blocks needs no
    such request. Blocks outlive the job. Where the disk is full or read-only there is one warning,
    and reads go straight to the store.

    Args:
        store: The store that is cached.
        cache_dir: Folder of the blocks; other stores may share it.
        limit_bytes: Limit of all blocks in the folder; the least recently used are evicted.
        block_bytes: Size of a block; smaller objects are one block each.
    """

    def __init__(
        self,
        store: CacheableStore,
        cache_dir: Path,
        limit_bytes: int,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        if not 4096 <= block_bytes <= _SPAN_BYTES:
            raise UsageError(f"block_bytes={block_bytes}: a block has 4096 to {_SPAN_BYTES} bytes.")
        self._store = store
        self._cache_dir = Path(cache_dir).absolute()  # a worker may have another working folder
        self._limit_bytes = limit_bytes
        self._block_bytes = block_bytes
        self._begin()

    def _begin(self) -> None:
        """Start without pending reads: a forked child never gets its parent's."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._folder = BlockFolder(self._cache_dir, self._limit_bytes)
        self._writer = BlockWriter(self._folder)
        self._identities: dict[str, bytes] = {}
        self._heads: dict[str, Future[ObjectInfo]] = {}
        self._pending: dict[tuple[str, int], Future[Block]] = {}

    @property
    def url(self) -> str:
        """The URL of the cached store."""
        return self._store.url

    def __reduce__(self) -> tuple[type[CachedStore], tuple[CacheableStore, Path, int, int]]:
        return CachedStore, (self._store, self._cache_dir, self._limit_bytes, self._block_bytes)

    def stats(self) -> CacheStats:
        """Return how many bytes this process read from disk and store, and wrote."""
        return self._writer.stats()

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object below the folder `prefix`; not cached."""
        return self._store.list(prefix)

    def list_entries(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object and unreadable entry below the folder `prefix`; not cached."""
        return self._store.list_entries(prefix)

    def head(self, path: str) -> ObjectInfo:
        """Return the store's description of an object."""
        info = self._store.head(path)
        self.learn(path, info)
        return info

    def get(self, path: str) -> Buffer:
        """Return a whole object."""
        return self.get_range(path, 0, self.head(path).size_bytes)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[Buffer]:
        """Return several (start, length) ranges of an object."""
        futures = [self.submit_range(path, start, length) for start, length in ranges]
        return [future.result() for future in futures]

    def submit_range(self, path: str, start: int, length: int) -> Future[Buffer]:
        """Start reading a range; blocks on disk are read at once."""
        check_range(start, length)
        if self._pid != os.getpid():
            self._begin()
        if length == 0:
            return done_future(lambda: memoryview(b""))
        read = CachedRead(path, start, length, self._block_bytes)
        self._start(read, fresh=False)
        return read.result

    def put(self, path: str, data: PutData) -> None:
        """Write an object to the store."""
        self._store.put(path, data)
        self._changed(path)

    def create(self, path: str, data: bytes) -> bool:
        """Write an object to the store unless it exists; return whether it was written."""
        written = self._store.create(path, data)
        self._changed(path)
        return written

    def delete(self, path: str) -> None:
        """Remove an object from the store."""
        self._store.delete(path)
        self._changed(path)

    def forget(self, path: str, start: int, length: int) -> None:
        """Remove the blocks of a range, so that its next read goes to the store."""
        numbers = CachedRead(path, start, max(length, 1), self._block_bytes).numbers
        self._forget_pending(path, numbers)
        for number in numbers:
            self._writer.drop(self._name(path, number))

    def close(self) -> None:
        """Write the blocks that wait to be written, and close the cached store."""
        self._writer.settle()
        self._store.close()

    def learn(self, path: str, info: ObjectInfo) -> bytes:
        """Remember the content of an object; return its identity."""
        stamp = info.etag or f"{info.modified_s}"
        text = f"{stamp}\0{info.size_bytes}"
        identity = blake2b(text.encode(), 16)
        if len(self._identities) >= _MOST_OBJECTS:
            self._identities.clear()
        self._identities[path] = identity
        return identity

    def _changed(self, path: str) -> None:
        """Forget the content of an object, so that its next read checks it."""
        self._identities.pop(path, None)
        with self._lock:
            known = [number for name, number in self._pending if name == path]
        self._forget_pending(path, known)

    def _start(self, read: CachedRead, *, fresh: bool) -> None:
        """Load blocks from disk, then fetch the rest; `fresh`: fetch all."""
        if fresh:
            self._forget_pending(read.path, read.numbers)
        found = {} if fresh else self._load(read)
        if not found or read.path in self._identities:
            self._fetch(read, found)
            return

        def checked(head: Future[ObjectInfo]) -> None:
            error = head.exception()
            if error is not None:
                read.fail(error)
                return
            self.learn(read.path, head.result())
            self._fetch(read, found)

        self._head(read.path).add_done_callback(checked)

    def _load(self, read: CachedRead) -> dict[int, Block]:
        blocks = {
            number: self._writer.load(self._name(read.path, number), *read.within(number))
            for number in read.numbers
        }
        return {number: block for number, block in blocks.items() if block is not None}

    def _head(self, path: str) -> Future[ObjectInfo]:
        with self._lock:
            head = self._heads.get(path)
            if head is not None:
                return head
            self._heads[path] = head = self._store.submit_head(path)
        head.add_done_callback(lambda _: self._heads.pop(path, None))
        return head

    def _fetch(self, read: CachedRead, found: dict[int, Block]) -> None:
        identity = self._identities.get(read.path)
        current = {number: block for number, block in found.items() if block.identity == identity}
        missing = [number for number in read.numbers if number not in current]
        read.gather(current, self._blocks(read.path, missing), self._finish)

    def _finish(self, read: CachedRead) -> None:
        """Finish a read; where its blocks are of two contents, fetch all of them again."""
        if read.is_of_one_content():
            read.deliver(self._store.url)
        elif read.tries < 2:
            self._start(read, fresh=True)
        else:
            read.fail(
                CorruptError(
                    f"{self._store.url}/{read.path}: the object keeps changing while it is read. "
                    "Wait until whoever writes it is done."
                )
            )

    def _blocks(self, path: str, numbers: Sequence[int]) -> dict[int, Future[Block]]:
        """Return futures of blocks; those that are not pending are requested from the store."""
        with self._lock:
            fresh = [number for number in numbers if (path, number) not in self._pending]
            for number in fresh:
                self._pending[path, number] = Future()
            futures = {number: self._pending[path, number] for number in numbers}
        for run in _runs(fresh, _SPAN_BYTES // self._block_bytes):
            self._request(path, {number: futures[number] for number in run})
        return futures

    def _request(self, path: str, futures: dict[int, Future[Block]]) -> None:
        """Request adjacent blocks from the store."""
        start, length = min(futures) * self._block_bytes, len(futures) * self._block_bytes
        try:
            part = self._store.submit_part(path, start, length)
        except HeadraceError as error:
            part = Future()
            part.set_exception(error)
        part.add_done_callback(lambda done: self._arrived(path, futures, done))

    def _arrived(self, path: str, futures: dict[int, Future[Block]], part: Future[Part]) -> None:
        error = part.exception()
        if error is not None:
            for number, future in futures.items():
                self._release_block(path, number, future)
                future.set_exception(error)
            return
        data, identity = part.result().data, self.learn(path, part.result().info)
        for number, future in futures.items():
            begin = (number - min(futures)) * self._block_bytes
            content = data[begin : begin + self._block_bytes]
            on_written = partial(self._release_block, path, number, future)
            self._writer.offer(self._name(path, number), identity, content, on_written)
            future.set_result(Block(identity=identity, start=0, data=content))

    def _release_block(self, path: str, number: int, future: Future[Block]) -> None:
        """Stop tracking a block that is written; until then other reads find it here."""
        with self._lock:
            if self._pending.get((path, number)) is future:
                del self._pending[path, number]

    def _forget_pending(self, path: str, numbers: Sequence[int]) -> None:
        """Make the next read of these blocks go to the store, though they are pending."""
        with self._lock:
            for number in numbers:
                self._pending.pop((path, number), None)

    def _name(self, path: str, number: int) -> str:
        text = f"{self._store.url}\0{path}\0{self._block_bytes}"
        return f"{blake2b(text.encode(), 16).hex()}-{number:x}"


def _runs(numbers: Sequence[int], most: int) -> Iterator[builtins.list[int]]:
    """Yield runs of consecutive numbers, each of at most `most`."""
    run: builtins.list[int] = []
    for number in numbers:
        if run and (number != run[-1] + 1 or len(run) == most):
            yield run
            run = []
        run.append(number)
    if run:
        yield run
