"""Requests made in this process, on its background loop."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError

from headrace.core.errors import DeniedError, NotFoundError, UsageError
from headrace.data.storage.background import submit
from headrace.data.storage.config import StorageConfig
from headrace.data.storage.connect import Connections
from headrace.data.storage.failures import WrongAnswerError
from headrace.data.storage.fetch import (
    Listing,
    all_or_none,
    checked_range,
    info_of,
    part_of,
)
from headrace.data.storage.pieces import is_repeatable, pieces_of, regrouped
from headrace.data.storage.process import enter_client
from headrace.data.storage.ranges import split_span
from headrace.data.storage.retry import Hedge, Retrier
from headrace.data.storage.settings import read_settings
from headrace.data.storage.store import Buffer, ObjectInfo, Part, PutData
from headrace.data.storage.upload import Upload, part_size
from headrace.data.storage.urls import Location

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import ObjectStore

_T = TypeVar("_T")
_PARTS_AT_ONCE = 8  # of one object: some 400 MB/s where a connection gives 50


class DirectClient:
    """Requests through obstore in this process, which must not fork after.

    Raises:
        UsageError: The connection's settings cannot be.
    """

    def __init__(self, location: Location, config: StorageConfig) -> None:
        enter_client()
        self._location = location
        self._config = config
        self._connections = Connections(location, config)
        self._retrier = Retrier(config.retry, self._reconnect)
        self._hedge = Hedge(config.hedge_after_s)
        self._turns = asyncio.Semaphore(config.in_flight)

    def read(self, key: str, start: int, length: int, target: str) -> Future[Buffer]:
        """Read a range; one longer than a part comes in parts, in parallel."""
        if length > self._config.part_bytes:
            return submit(self._read_long(key, start, length, target))

        async def fetch(store: ObjectStore) -> Buffer:
            data = await obstore.get_range_async(store, key, start=start, length=length)
            return checked_range(memoryview(data), length)

        return submit(self._get(target, fetch))

    def read_part(self, key: str, start: int, length: int, target: str) -> Future[Part]:
        """Read a range up to the object's end, and what is known of it."""

        async def fetch(store: ObjectStore) -> Part:
            return await part_of(store, key, start, length)

        return submit(self._get(target, fetch))

    def read_whole(self, key: str, target: str) -> Future[Buffer]:
        """Read an object: its first part, then, where there are more, the others in parallel."""
        return submit(self._read_whole(key, target))

    async def request(self, target: str, make: Callable[[ObjectStore], Awaitable[_T]]) -> _T:
        """Make a request of the caller's own, on the background loop; retried like all others.

        Args:
            target: URL and range, for the error.
            make: Makes one attempt.
        """
        return await self._in_turn(target, lambda: make(self._connections.reader))

    def head(self, key: str, target: str) -> Future[ObjectInfo]:
        """Return what is known of an object."""

        async def fetch(store: ObjectStore) -> ObjectInfo:
            return info_of(await obstore.head_async(store, key))

        return submit(self._get(target, fetch))

    def list(self, prefix: str, target: str) -> Iterator[builtins.list[ObjectInfo]]:
        """Yield pages; after a failure the listing goes on behind the last object that came."""
        listing = Listing(prefix, resumable=self._location.kind != "http")

        async def page() -> builtins.list[ObjectInfo]:
            return await listing.next_page(self._connections.reader)

        while found := submit(self._in_turn(target, page)).result():
            yield found

    def put(self, key: str, data: PutData, target: str) -> None:
        """Write an object, in parts where it is longer than one.

        With new credentials, where there are any, it tries again if the data can be had again.
        """
        try:
            self._put(key, data, target)
        except DeniedError:
            if not (is_repeatable(data) and self._reconnect()):
                raise
        else:
            return
        self._put(key, data, target)

    def _put(self, key: str, data: PutData, target: str) -> None:
        part_bytes = part_size(data, self._config.part_bytes)
        groups = regrouped(pieces_of(data), part_bytes)
        first, second = next(groups, b""), next(groups, None)
        if second is not None and self._location.kind != "http":
            self._renew()
            upload = Upload(self._connections.writer, key, part_bytes)
            upload.run(
                chain([first, second], groups), lambda send: self._retrier.run_once(target, send)
            )
            return
        # Plain web servers take no parts.
        whole = first if second is None else b"".join([first, second, *groups])

        async def send() -> None:
            await obstore.put_async(self._connections.reader, key, whole, use_multipart=False)

        submit(self._in_turn(target, send)).result()

    def create(self, key: str, data: bytes, target: str) -> Future[bool]:
        """Write a small object unless there is one; tell whether it was written."""

        async def send() -> bool:
            store = self._connections.reader
            # Plain web servers take no conditions, and some of S3's kind ignore them.
            with suppress(FileNotFoundError):
                await obstore.head_async(store, key)
                return False
            mode: PutMode = "overwrite" if self._location.kind == "http" else "create"
            try:
                await obstore.put_async(store, key, data, use_multipart=False, mode=mode)
            except AlreadyExistsError:
                return False
            return True

        return submit(self._in_turn(target, send))

    def delete(self, key: str, target: str) -> Future[None]:
        """Remove an object; one that does not exist is no error."""

        async def remove() -> None:
            await obstore.delete_async(self._connections.reader, key)

        async def work() -> None:
            try:
                await self._in_turn(target, remove)
            except NotFoundError:
                return

        return submit(work())

    def close(self) -> None:
        """Let go of connections: fresh ones are made when they are needed."""
        self._connections = Connections(self._location, self._config)

    async def _read_long(self, key: str, start: int, length: int, target: str) -> Buffer:
        whole = bytearray(length)

        async def fetch(store: ObjectStore, first: int, size: int) -> Buffer:
            data = await obstore.get_range_async(store, key, start=first, length=size)
            return checked_range(memoryview(data), size)

        await self._fill(whole, start, 0, target.partition(" (bytes ")[0], fetch)
        return memoryview(whole).toreadonly()

    async def _read_whole(self, key: str, target: str) -> Buffer:
        async def fetch_first(store: ObjectStore) -> Part:
            return await part_of(store, key, 0, self._config.part_bytes)

        async def fetch(store: ObjectStore, start: int, length: int) -> Buffer:
            later = await part_of(store, key, start, length)
            if (later.info.etag, later.info.size_bytes) != (info.etag, info.size_bytes):
                raise WrongAnswerError("the object changed while it was read")
            return checked_range(later.data, length)

        first = await self._get(target, fetch_first)
        info = first.info
        if len(first.data) == info.size_bytes:
            return first.data
        whole = bytearray(info.size_bytes)
        whole[: len(first.data)] = first.data
        await self._fill(whole, 0, len(first.data), target, fetch)
        return memoryview(whole).toreadonly()

    async def _fill(
        self,
        whole: bytearray,
        start: int,
        filled: int,
        target: str,
        fetch: Callable[[ObjectStore, int, int], Coroutine[Any, Any, Buffer]],
    ) -> None:
        """Fill `whole`, which lies at `start` in its object, from its byte `filled` on."""
        at_once = asyncio.Semaphore(_PARTS_AT_ONCE)

        async def fill(offset: int, size: int) -> None:
            first = start + offset
            named = f"{target} (bytes {first}-{first + size - 1})"
            async with at_once:
                part = await self._get(named, lambda store: fetch(store, first, size))
            whole[offset : offset + size] = part

        spans = split_span(filled, len(whole), self._config.part_bytes)
        await all_or_none([fill(offset, size) for offset, size in spans])

    async def _get(
        self, target: str, fetch: Callable[[ObjectStore], Coroutine[Any, Any, _T]]
    ) -> _T:
        async def attempt() -> _T:
            connections = self._connections
            return await self._hedge.run(
                lambda: fetch(connections.reader), lambda: fetch(connections.hedge)
            )

        return await self._in_turn(target, attempt)

    async def _in_turn(self, target: str, attempt: Callable[[], Awaitable[_T]]) -> _T:
        async with self._turns:
            return await self._retrier.run(target, attempt)

    def _renew(self) -> None:
        """Take up new credentials before what cannot be tried again."""
        # A provider renews them by itself, and making another one may run a program.
        if "credential_provider" not in self._connections.settings:
            with suppress(UsageError):  # a profile half-written: these may still be good
                self._reconnect()

    def _reconnect(self) -> bool:
        """Connect anew where the credentials have changed since; tell whether they had."""
        if read_settings(self._location) == self._connections.settings:
            return False
        self._connections = Connections(self._location, self._config)
        return True
