"""Single requests and uploads through obstore, on one event loop a process."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore.exceptions import BaseError, NotSupportedError

from headrace.data.storage.client.retries import WrongAnswerError
from headrace.data.storage.store import Buffer, ObjectInfo, Part

if TYPE_CHECKING:
    from obstore import ListStream, ObjectMeta
    from obstore.store import ObjectStore

_T = TypeVar("_T")


class _Background:
    """The event loop's thread; made at the first request, and again in a forked child."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="headrace-storage", daemon=True)
        self.thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """End all requests and the thread: the client must not call into an exiting Python."""
        if self.pid == os.getpid() and self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(timeout=5)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


_lock = threading.Lock()
_current: list[_Background] = []


def submit(work: Coroutine[Any, Any, _T]) -> Future[_T]:
    """Start `work` on the background loop of this process."""
    with _lock:
        if not _current or _current[0].pid != os.getpid():
            _current[:] = [_Background()]
        loop = _current[0].loop
    return asyncio.run_coroutine_threadsafe(work, loop)


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603  (another thread may have held it at the fork)
    _lock = threading.Lock()
    _current.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)

_PAGE = 1000  # most objects that an S3 listing request returns


async def part_of(store: ObjectStore, key: str, start: int, length: int) -> Part:
    """Return bytes [start, start + length) of an object, up to its end.

    WrongAnswerError: the answer has another length than it claims. BaseError: the client failed.
    """
    end = start + length
    try:
        result = await obstore.get_async(store, key, options={"range": (start, end)})
    except BaseError as error:
        # An empty object has no first byte; a plain web server may know no ranges.
        text = str(error)
        rangeless = isinstance(error, NotSupportedError) or "NotPartial" in text
        if start or not (rangeless or "status code: 416" in text):
            raise
        result = await obstore.get_async(store, key)
        end = result.meta["size"]
    end = min(end, result.meta["size"])
    data = memoryview(await result.bytes_async())
    if result.range != (start, end) and end > start:
        received = f"{result.range[0]}..{result.range[1]}"
        raise WrongAnswerError(f"bytes {start}..{end} were asked for and {received} came")
    return Part(data=checked_range(data, end - start), info=info_of(result.meta))


async def range_of(store: ObjectStore, key: str, start: int, length: int) -> Buffer:
    """Return bytes [start, start + length) of an object; raises as `part_of`."""
    data = await obstore.get_range_async(store, key, start=start, length=length)
    return checked_range(memoryview(data), length)


def checked_range(data: Buffer, length: int) -> Buffer:
    """Return `data`; raises WrongAnswerError where its length differs."""
    if len(data) != length:
        raise WrongAnswerError(f"{length} bytes were asked for and {len(data)} came")
    return data


def info_of(meta: ObjectMeta) -> ObjectInfo:
    """Convert the client's description of an object to ours."""
    return ObjectInfo(
        path=meta["path"],
        size_bytes=meta["size"],
        etag=(meta["e_tag"] or "").strip('"'),
        modified_s=meta["last_modified"].timestamp(),
    )


async def all_or_none(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run `work` concurrently; the first failure cancels the rest and is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class PagedListing:
    """A listing in pages, which resumes after a failed request if the store lists in order."""

    def __init__(self, prefix: str, *, resumable: bool, after: str | None = None) -> None:
        self._prefix = prefix
        self._resumable = resumable
        self._last = after
        self._stream: ListStream[Sequence[ObjectMeta]] | None = None

    async def next_page(self, store: ObjectStore) -> list[ObjectInfo]:
        """Return the next objects; none at the end."""
        stream = self._stream or obstore.list(
            store, self._prefix or None, offset=self._last, chunk_size=_PAGE
        )
        self._stream = None
        try:
            page = await anext(stream)
        except StopAsyncIteration:
            return []
        self._stream = stream
        if self._resumable and page:
            self._last = page[-1]["path"]
        return [info_of(meta) for meta in page]


_CONCURRENT_PARTS = 4
_WAITING_PARTS = 2

RunWithoutRetry = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]


class _AbandonedError(Exception):
    """The producer of the pieces failed: the parts so far must not become an object."""


class Upload:
    """The upload of one object: the caller's thread makes pieces, the event loop sends them.

    Until the last part is confirmed the store has no object, or the previous one.
    """

    def __init__(self, store: ObjectStore, key: str, part_bytes: int) -> None:
        self._store = store
        self._key = key
        self._part_bytes = part_bytes
        self._parts: asyncio.Queue[bytes | _AbandonedError | None] = asyncio.Queue(_WAITING_PARTS)

    def run(self, parts: Iterator[bytes], run_without_retry: RunWithoutRetry) -> None:
        """Send `parts`; return when the object exists.

        StorageError: it could not be written. Nor is it after any error of `parts`.
        """
        sending = submit(self._send(run_without_retry))
        try:
            for part in parts:
                submit(self._offer(part)).result()
        except BaseException:
            submit(self._offer(_AbandonedError())).result()
            sending.exception()
            raise
        submit(self._offer(None)).result()
        sending.result()

    async def _send(self, run_without_retry: RunWithoutRetry) -> None:
        async def attempt() -> None:
            await obstore.put_async(
                self._store,
                self._key,
                self._stream(),
                use_multipart=True,
                chunk_size=self._part_bytes,
                max_concurrency=_CONCURRENT_PARTS,
            )

        try:
            await run_without_retry(attempt)
        finally:
            # Nobody takes parts any more: make room, so that the producer does not wait for ever.
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
