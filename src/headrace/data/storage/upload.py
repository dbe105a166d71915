"""An object written in parts, while its pieces are still being made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore

from headrace.data.storage.background import submit
from headrace.data.storage.store import PutData

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_MOST_PARTS = 9000  # S3 takes 10,000
_PARTS_AT_ONCE = 4
_WAITING_PARTS = 2

RunOnce = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]


class _AbandonedError(Exception):
    """Whoever makes the pieces failed: the parts so far must not become an object."""


def part_size(data: PutData, usual: int) -> int:
    """Return the size of the parts, in bytes: more than `usual` where those would be too many.

    A stream of unknown length is limited to 9,000 parts of the usual size.
    """
    if isinstance(data, Path):
        size = data.stat().st_size
    elif isinstance(data, bytes | bytearray | memoryview):
        size = len(data)
    else:
        return usual
    return max(usual, -(-size // _MOST_PARTS))


class Upload:
    """One object on its way: pieces are made in the caller's thread and sent from the loop.

    Until the last part is confirmed the store shows nothing, or the object that was there before.
    """

    def __init__(self, store: ObjectStore, key: str, part_bytes: int) -> None:
        self._store = store
        self._key = key
        self._part_bytes = part_bytes
        self._parts: asyncio.Queue[bytes | _AbandonedError | None] = asyncio.Queue(_WAITING_PARTS)

    def run(self, parts: Iterator[bytes], run_once: RunOnce) -> None:
        """Send `parts`; returns when the object is there.

        Raises:
            StorageError: It could not be written.
            Exception: What `parts` raised; the object is not written.
        """
        sending = submit(self._send(run_once))
        try:
            for part in parts:
                submit(self._offer(part)).result()
        except BaseException:
            submit(self._offer(_AbandonedError())).result()
            sending.exception()
            raise
        submit(self._offer(None)).result()
        sending.result()

    async def _send(self, run_once: RunOnce) -> None:
        async def attempt() -> None:
            await obstore.put_async(
                self._store,
                self._key,
                self._stream(),
                use_multipart=True,
                chunk_size=self._part_bytes,
                max_concurrency=_PARTS_AT_ONCE,
            )

        try:
            await run_once(attempt)
        finally:
            # Nobody takes parts any more: make room, so that the maker does not wait for ever.
            self._taken = True
            while not self._parts.empty():
                self._parts.get_nowait()

    async def _offer(self, part: bytes | _AbandonedError | None) -> None:
        if not self._taken:
            await self._parts.put(part)

    async def _stream(self) -> AsyncIterator[bytes]:
        while (part := await self._parts.get()) is not None:
            if isinstance(part, _AbandonedError):
                raise part
            yield part

    _taken = False
