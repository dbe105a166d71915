"""Requests made in this process, on its background loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from itertools import chain
from typing import TYPE_CHECKING, Any

import obstore

from headrace.core.errors import NotFoundError
from headrace.data.storage.background import submit
from headrace.data.storage.config import StorageConfig
from headrace.data.storage.connect import Connections, connect, read_settings
from headrace.data.storage.fetch import (
    Listing,
    all_or_none,
    checked_range,
    first_part,
    info_of,
    later_part,
)
from headrace.data.storage.pieces import pieces_of, regrouped
from headrace.data.storage.process import enter_client
from headrace.data.storage.retry import Hedge, Retrier
from headrace.data.storage.store import Buffer, ObjectInfo, PutData
from headrace.data.storage.upload import Upload, part_size
from headrace.data.storage.urls import Location

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_PARTS_AT_ONCE = 8  # of one object: some 400 MB/s where a connection gives 50


class DirectClient:
    """Requests through obstore in this process.

    Raises:
        ForkedClientError: This process was forked from one that made such requests.
        UsageError: The connection's settings cannot be.
    """

    def __init__(self, location: Location, config: StorageConfig) -> None:
        enter_client()
        self._location = location
        self._config = config
        self._connections = connect(location, config)
        self._retrier = Retrier(config.retry, self._reconnect)
        self._hedge = Hedge(config.hedge_after_s)
        self._turns = asyncio.Semaphore(config.in_flight)

    def read(self, key: str, start: int, length: int, target: str) -> Future[Buffer]:
        """Read a range that is no longer than a part."""

        async def fetch(store: ObjectStore) -> Buffer:
            data = await obstore.get_range_async(store, key, start=start, length=length)
            return checked_range(memoryview(data), length)

        return submit(self._in_turn(target, lambda: self._hedged(fetch)))

    def read_whole(self, key: str, target: str) -> Future[Buffer]:
        """Read an object: its first part, then, where there are more, the others in parallel."""
        return submit(self._read_whole(key, target))

    def head(self, key: str, target: str) -> Future[ObjectInfo]:
        """Return what is known of an object."""

        async def fetch(store: ObjectStore) -> ObjectInfo:
            return info_of(await obstore.head_async(store, key))

        return submit(self._in_turn(target, lambda: self._hedged(fetch)))

    def list(self, prefix: str, target: str) -> Iterator[list[ObjectInfo]]:
        """Yield pages; after a failure the listing goes on behind the last object that came."""
        listing = Listing(prefix, resumable=self._location.kind != "http")
        while page := submit(
            self._in_turn(target, lambda: listing.next_page(self._connections.reader))
        ).result():
            yield page

    def put(self, key: str, data: PutData, target: str) -> None:
        """Write an object, in parts where it is longer than one."""
        part_bytes = part_size(data, self._config.part_bytes)
        groups = regrouped(pieces_of(data), part_bytes)
        first, second = next(groups, b""), next(groups, None)
        if second is not None and self._location.kind == "http":
            first, second = b"".join([first, second, *groups]), None
        if second is None:
            submit(self._in_turn(target, lambda: self._put_whole(key, first))).result()
            return
        upload = Upload(self._connections.writer, key, part_bytes)
        upload.run(
            chain([first, second], groups), lambda work: self._retrier.run_once(target, work)
        )

    def delete(self, key: str, target: str) -> Future[None]:
        """Remove an object."""

        async def remove() -> None:
            await obstore.delete_async(self._connections.reader, key)

        async def work() -> None:
            try:
                await self._in_turn(target, remove)
            except NotFoundError:
                return

        return submit(work())

    def close(self) -> None:
        """Let go of connections: new ones are made when they are needed."""
        self._connections = connect(self._location, self._config)

    async def _put_whole(self, key: str, data: bytes) -> None:
        await obstore.put_async(self._connections.reader, key, data, use_multipart=False)

    async def _read_whole(self, key: str, target: str) -> Buffer:
        part_bytes = self._config.part_bytes

        async def fetch_first(store: ObjectStore) -> tuple[Buffer, int, str | None]:
            return await first_part(store, key, part_bytes)

        data, size, etag = await self._in_turn(target, lambda: self._hedged(fetch_first))
        if len(data) == size:
            return data
        whole = bytearray(size)
        whole[: len(data)] = data
        at_once = asyncio.Semaphore(_PARTS_AT_ONCE)

        async def fill(start: int) -> None:
            end = min(start + part_bytes, size)

            async def fetch(store: ObjectStore) -> Buffer:
                return await later_part(store, key, start, end, etag)

            async with at_once:
                named = f"{target} (bytes {start}-{end - 1})"
                whole[start:end] = await self._in_turn(named, lambda: self._hedged(fetch))

        await all_or_none([fill(start) for start in range(part_bytes, size, part_bytes)])
        return memoryview(whole).toreadonly()

    async def _in_turn(self, target: str, attempt: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        async with self._turns:
            return await self._retrier.run(target, attempt)

    async def _hedged(self, fetch: Callable[[ObjectStore], Coroutine[Any, Any, Any]]) -> Any:
        connections = self._connections
        return await self._hedge.run(
            lambda: fetch(connections.reader), lambda: fetch(connections.hedge)
        )

    def _reconnect(self) -> bool:
        """Connect anew where the credentials have changed since; tell whether they had."""
        if read_settings(self._location) == self._connections.settings:
            return False
        self._connections = connect(self._location, self._config)
        return True
