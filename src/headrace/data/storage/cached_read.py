"""One read of a cached store: its blocks come from the disk and from the store, in any order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from headrace.core.errors import CorruptError
from headrace.data.storage.store import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Bytes of one block.

    Attributes:
        identity: Which content of the object they are of.
        start: Where in the block they begin.
        data: From there on, as far as they were asked for or the block goes.
    """

    identity: bytes
    start: int
    data: memoryview


class CachedRead:
    """A range of an object, cut at the blocks' bounds.

    Attributes:
        path: The object.
        numbers: The blocks that it touches.
        tries: How often it was gathered.
        result: What comes of it.
    """

    def __init__(self, path: str, start: int, length: int, block_bytes: int) -> None:
        self.path = path
        self.numbers = range(start // block_bytes, (start + length - 1) // block_bytes + 1)
        self.tries = 0
        self.result: Future[Buffer] = Future()
        self.result.set_running_or_notify_cancel()
        self._start = start
        self._length = length
        self._block_bytes = block_bytes
        self._lock = threading.Lock()
        self._blocks: dict[int, Block] = {}
        self._missing = 0

    def within(self, number: int) -> tuple[int, int]:
        """Return which (start, length) of block `number` is wanted."""
        begin = max(self._start - number * self._block_bytes, 0)
        end = min(self._start + self._length - number * self._block_bytes, self._block_bytes)
        return begin, end - begin

    def gather(
        self,
        found: Mapping[int, Block],
        coming: Mapping[int, Future[Block]],
        finish: Callable[[CachedRead], None],
    ) -> None:
        """Call `finish` once all blocks are there; the first failure fails the read."""
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
        """Tell whether all blocks are of the same content of the object."""
        return len({block.identity for block in self._blocks.values()}) == 1

    def deliver(self, url: str) -> None:
        """Set the result from the blocks; CorruptError where the object ends before."""
        pieces = [self._piece(number) for number in self.numbers]
        came = sum(len(piece) for piece in pieces)
        if came != self._length:
            end = self._start + self._length - 1
            self.fail(
                CorruptError(
                    f"{url}/{self.path} (bytes {self._start}-{end}): the object is shorter than "
                    "the range. Was it replaced, or is it not what the index says?"
                )
            )
            return
        whole = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
        self.result.set_result(whole)

    def fail(self, error: BaseException) -> None:
        """Set the error, unless there is one."""
        with self._lock:
            if not self.result.done():
                self.result.set_exception(error)

    def _piece(self, number: int) -> memoryview:
        start, length = self.within(number)
        block = self._blocks[number]
        return block.data[start - block.start : start - block.start + length]
