"""The fetcher of a channel's objects: many small ones concurrently, large ones in parts."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import obstore

from headrace.core.errors import CorruptError, NotFoundError
from headrace.data.channels.copy.cache_dir import CacheDir, disk_errors
from headrace.data.channels.copy.object_files import (
    ContentRecords,
    ObjectFiles,
    PartialObject,
    content_name,
)
from headrace.data.channels.copy.progress import CopyCounts
from headrace.data.channels.listing import check_unchanged
from headrace.data.storage import ObjectInfo, StorageConfig
from headrace.data.storage.client.direct import DirectClient
from headrace.data.storage.client.requests import all_or_none, checked_range, info_of, part_of
from headrace.data.storage.store import Part
from headrace.data.storage.urls import parse_url

if TYPE_CHECKING:
    from obstore.store import ObjectStore

FOLDER = "folder"
"""The content of an empty object whose key ends in "/": consoles write these as folders."""
SMALL_BYTES = 2**20
"""Objects up to this size are fetched whole; they take less than 256 MiB of memory a process."""
MAX_SMALL_REQUESTS = 128  # at 30 ms latency 4,000 objects a second, more than one loop can process
MAX_PART_REQUESTS = 12  # of large objects: each takes 8 MiB of memory
MAX_REQUESTS = MAX_SMALL_REQUESTS + MAX_PART_REQUESTS
WRITING_THREADS = 4
_WRITE_BATCH_OBJECTS = 16  # objects that one call of a writing thread writes
_Fetched: TypeAlias = tuple[ObjectInfo, memoryview]
_Parts: TypeAlias = asyncio.Queue[tuple[PartialObject, int] | None]
_MD5 = re.compile(r"[0-9a-f]{32}")


class ObjectFetcher:
    """Fetches objects into a tree. All its coroutines run on one loop.

    Args:
        base: The URL that the objects' paths are below.
        tree: The folder of the tree; its folders exist.
        folders: The cache's folders.
        known: Gets the contents.
        counts: Counts the objects.
        config: The settings of requests.
    """

    def __init__(
        self, base: str, tree: str, folders: CacheDir, known: ContentRecords,
        counts: CopyCounts, config: StorageConfig,
    ) -> None:  # fmt: skip
        self._location = parse_url(base)
        self._base = base
        self._client = DirectClient(self._location, config)
        self._tree = tree
        self._folders = folders
        self._objects = ObjectFiles(folders)
        self._known = known
        self._counts = counts
        self._writers = ThreadPoolExecutor(WRITING_THREADS, thread_name_prefix="headrace-write")
        self._fetched_small: list[_Fetched] = []
        self._tags_are_md5 = True

    async def fetch(self, infos: Sequence[ObjectInfo]) -> None:
        """Fetch objects.

        Raises StorageError (an object cannot be fetched, has changed, or cannot be written).
        """
        small = iter([info for info in infos if info.size_bytes <= SMALL_BYTES])
        large = [info for info in infos if info.size_bytes > SMALL_BYTES]
        parts: _Parts = asyncio.Queue(MAX_PART_REQUESTS)
        try:
            await all_or_none(
                [
                    self._fetch_all_small(small),
                    self._plan_parts(large, parts),
                    *(self._fetch_parts(parts) for _ in range(MAX_PART_REQUESTS)),
                ]
            )
        finally:
            self._writers.shutdown(wait=False, cancel_futures=True)

    async def _fetch_all_small(self, infos: Iterable[ObjectInfo]) -> None:
        await all_or_none([self._fetch_small(infos) for _ in range(MAX_SMALL_REQUESTS)])
        await self._place_small(self._fetched_small)

    async def _fetch_small(self, infos: Iterable[ObjectInfo]) -> None:
        for info in infos:
            try:
                data = await self._whole(info)
                self._fetched_small.append((info, data))
            except NotFoundError:
                if info.size_bytes:
                    raise
                self._note_folder(info)
            if len(self._fetched_small) >= _WRITE_BATCH_OBJECTS:
                fetched, self._fetched_small = self._fetched_small, []
                await self._place_small(fetched)

    async def _place_small(self, fetched: Sequence[_Fetched]) -> None:
        """Write objects in a thread: writing a file may take longer than its GET."""
        loop = asyncio.get_running_loop()
        doubtful = await loop.run_in_executor(self._writers, self._write_small, fetched)
        for info, data in doubtful:
            await self._read_again(info, data)

    def _write_small(self, fetched: Sequence[_Fetched]) -> list[_Fetched]:
        """Place objects; return those whose ETag looks like an MD5 and differs."""
        doubtful, placed = [], []
        for info, data in fetched:
            if self._tags_are_md5 and not _matches_etag(info, data):
                doubtful.append((info, data))
                continue
            content = hashlib.sha256(data).hexdigest()
            place = self._place(info)
            with disk_errors(place):
                self._objects.place(content, data, place)
            placed.append((info, content))
            self._counts.add(objects=1, size_bytes=info.size_bytes)
        self._known.add(placed)
        return doubtful

    async def _read_again(self, info: ObjectInfo, data: memoryview) -> None:
        """Accept an object whose second read has the ETag's MD5, or equals the first.

        In the second case the store's ETags are no MD5s, as for encrypted objects.
        """
        again = await self._whole(info)
        if not _matches_etag(info, again):
            if again != data:
                _, target = self._named(info)
                raise CorruptError(
                    f"{target}: two reads of it differ, and neither has the MD5 that its ETag "
                    "says. Something between the store and this host changes bytes: check the "
                    "network's proxies."
                )
            self._tags_are_md5 = False
        self._write_small([(info, again)])

    async def _whole(self, info: ObjectInfo) -> memoryview:
        key, target = self._named(info)

        async def get(store: ObjectStore) -> Part:
            result = await obstore.get_async(store, key)
            data = memoryview(await result.bytes_async())
            return Part(data=checked_range(data, result.meta["size"]), info=info_of(result.meta))

        part = await self._client.request(target, get)
        check_unchanged(target, info, part.info)
        return part.data

    def _note_folder(self, info: ObjectInfo) -> None:
        Path(self._place(info)).mkdir(exist_ok=True)
        self._known.add([(info, FOLDER)])
        self._counts.add(objects=1)

    async def _plan_parts(self, infos: Sequence[ObjectInfo], parts: _Parts) -> None:
        """Queue the missing parts; each draft is opened only when its parts are queued."""
        loop = asyncio.get_running_loop()
        for info in infos:
            with disk_errors(self._place(info)):
                draft = PartialObject(self._folders, self._base, info)
                resumed = await loop.run_in_executor(self._writers, draft.resume)
            self._counts.keep(size_bytes=resumed)
            missing = draft.missing()
            draft.left = len(missing)
            if not missing:
                self._place_draft(draft)
            for number in missing:
                await parts.put((draft, number))
        for _ in range(MAX_PART_REQUESTS):
            await parts.put(None)

    async def _fetch_parts(self, parts: _Parts) -> None:
        loop = asyncio.get_running_loop()
        while (part := await parts.get()) is not None:
            draft, number = part
            start, length = draft.span(number)
            data = await self._part(draft.info, start, length)
            with disk_errors(draft.file):
                await loop.run_in_executor(self._writers, draft.write, number, data)
            self._counts.add(size_bytes=length)
            draft.left -= 1
            if not draft.left:
                self._place_draft(draft)

    async def _part(self, info: ObjectInfo, start: int, length: int) -> memoryview:
        key, target = self._named(info)
        part = await self._client.request(
            f"{target} (bytes {start}-{start + length - 1})",
            lambda store: part_of(store, key, start, length),
        )
        check_unchanged(target, info, part.info)
        return part.data

    def _place_draft(self, draft: PartialObject) -> None:
        content = content_name(draft.digests(), draft.info.size_bytes)
        place = self._place(draft.info)
        with disk_errors(place):
            self._objects.place_draft(draft.file, draft.descriptor, content, place)
            draft.close()
            self._known.add([(draft.info, content)])
        self._counts.add(objects=1)

    def _named(self, info: ObjectInfo) -> tuple[str, str]:
        return self._location.key(info.path), self._location.object_url(info.path)

    def _place(self, info: ObjectInfo) -> str:
        return f"{self._tree}/{info.path}"


def _matches_etag(info: ObjectInfo, data: memoryview) -> bool:
    """Return whether data match an object's ETag, where that may be an MD5."""
    if not _MD5.fullmatch(info.etag):
        return True
    return hashlib.md5(data, usedforsecurity=False).hexdigest() == info.etag
