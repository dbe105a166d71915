"""Single requests to the object-store client, each answer checked."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import BaseError, NotSupportedError

from headrace.data.storage.failures import WrongAnswerError
from headrace.data.storage.store import Buffer, ObjectInfo, Part

if TYPE_CHECKING:
    from obstore import ListStream, ObjectMeta
    from obstore.store import ObjectStore

_PAGE = 1000  # objects that a listing request of S3 and its kin returns at most


async def part_of(store: ObjectStore, key: str, start: int, length: int) -> Part:
    """Return bytes [start, start + length) of an object, as far as it goes.

    Raises:
        WrongAnswerError: The answer's length is not what it says.
        BaseError: The client's failure.
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
        came = f"{result.range[0]}..{result.range[1]}"
        raise WrongAnswerError(f"bytes {start}..{end} were asked for and {came} came")
    return Part(data=checked_range(data, end - start), info=info_of(result.meta))


def checked_range(data: Buffer, length: int) -> Buffer:
    """Return `data`; raises WrongAnswerError where its length is another."""
    if len(data) != length:
        raise WrongAnswerError(f"{length} bytes were asked for and {len(data)} came")
    return data


def info_of(meta: ObjectMeta) -> ObjectInfo:
    """Return the client's description of an object as ours."""
    return ObjectInfo(
        path=meta["path"],
        size_bytes=meta["size"],
        etag=(meta["e_tag"] or "").strip('"'),
        modified_s=meta["last_modified"].timestamp(),
    )


async def all_or_none(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run `work` at once; the first failure ends the rest and is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class Listing:
    """A listing in pages that goes on where a failed request left it.

    Args:
        prefix: The folder.
        resumable: Whether the store lists in order, so that it can go on behind a path.
    """

    def __init__(self, prefix: str, *, resumable: bool) -> None:
        self._prefix = prefix
        self._resumable = resumable
        self._last: str | None = None
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
