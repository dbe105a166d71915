"""Object-store client within this process, by obstore: retries, hedged requests, long objects."""

from __future__ import annotations

import asyncio
import base64
import builtins
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from headrace.core.errors import DeniedError, NotFoundError, UsageError
from headrace.core.loader_hooks import LOADER_HOOKS
from headrace.data.storage.client.credentials import read_settings
from headrace.data.storage.client.fork_state import enter_client
from headrace.data.storage.client.requests import (
    PagedListing,
    Upload,
    all_or_none,
    checked_range,
    info_of,
    part_of,
    range_of,
    submit,
)
from headrace.data.storage.client.retries import Hedge, Retrier, WrongAnswerError, is_refused
from headrace.data.storage.store import (
    Buffer,
    ObjectInfo,
    Part,
    PutData,
    StorageConfig,
    is_repeatable,
    part_size,
    pieces_of,
    regrouped,
    size_of,
    split_span,
)
from headrace.data.storage.urls import Location

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

_STORES: dict[str, Callable[..., ObjectStore]] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_NO_RETRIES: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(0)}


class Connections:
    """The obstore clients of one location; each has connections of its own.

    Making one takes some 10 ms: the hedge and the writer, which a reading worker hardly ever needs,
    are made at their first use. The reader, for all other requests, never retries by itself.
    UsageError: invalid settings in the environment or in a profile.
    """

    def __init__(self, location: Location, config: StorageConfig) -> None:
        self._location = location
        self._config = config
        self._client = _client_options(config)
        self.settings = read_settings(location)  # compared with new ones to detect new credentials
        self.reader: ObjectStore = self._open(self._client, _NO_RETRIES)

    @cached_property
    def hedge(self) -> ObjectStore:
        """The client for hedged requests: it opens a fresh connection for each."""
        return self._open({**self._client, "pool_max_idle_per_host": "0"}, _NO_RETRIES)

    @cached_property
    def writer(self) -> ObjectStore:
        """The client for uploads, whose parts it retries within the policy's deadline."""
        return self._open(self._client, _upload_retries(self._config))

    def _open(self, client: ClientConfig, retry: RetryConfig) -> ObjectStore:
        try:
            return self._opened(client, retry)
        except (BaseError, ValueError) as error:  # its text may contain settings
            if "Account must be specified" in str(error):
                problem = "the storage account is not named. Set AZURE_STORAGE_ACCOUNT."
            else:
                problem = (
                    f"the client refuses the URL or its settings ({type(error).__name__}). Check "
                    "endpoint, region and credentials in the environment and the cloud's own files."
                )
            raise UsageError(f"{self._location.url}: {problem}") from None

    def _opened(self, client: ClientConfig, retry: RetryConfig) -> ObjectStore:
        location = self._location
        options: dict[str, Any] = {"client_options": client, "retry_config": retry}
        if location.kind in _STORES:
            return _STORES[location.kind](location.root, **self.settings, **options)
        server = urlsplit(location.secret_url)
        if server.username is not None:
            user = f"{unquote(server.username)}:{unquote(server.password or '')}".encode()
            authorization = "Basic " + base64.b64encode(user).decode()
            headers = {"Authorization": authorization}
            options["client_options"] = {**client, "default_headers": headers}
        # The path is left out where it is part of each key. The query stays: it may be a signature.
        host, path = server.netloc.rpartition("@")[2], location.written_path
        plain = server._replace(netloc=host, path=path, fragment="")
        return HTTPStore(urlunsplit(plain), **options)


def _client_options(config: StorageConfig) -> ClientConfig:
    return {
        # An http endpoint is intended; nothing falls back from https to http.
        "allow_http": True,
        "connect_timeout": timedelta(seconds=config.connect_timeout_s),
        "read_timeout": timedelta(seconds=config.retry.stall_s),
        "timeout": timedelta(seconds=config.retry.deadline_s),
        "user_agent": "headrace",
    }


def _upload_retries(config: StorageConfig) -> RetryConfig:
    policy = config.retry
    return {
        "max_retries": 1000,
        "retry_timeout": timedelta(seconds=policy.deadline_s),
        "backoff": {
            "init_backoff": timedelta(seconds=policy.first_wait_s),
            "max_backoff": timedelta(seconds=policy.longest_wait_s),
            "base": 2,
        },
    }


_T = TypeVar("_T")
_CONCURRENT_PARTS = 8  # of one object: some 400 MB/s where one connection reaches 50


class DirectClient:
    """Requests through obstore in this process, which must not fork; UsageError: bad settings."""

    def __init__(self, location: Location, config: StorageConfig) -> None:
        enter_client()
        self._location = location
        self._config = config
        self._connections = Connections(location, config)
        self._retrier = Retrier(config.retry, self._reconnect)
        self._hedge = Hedge(config.hedge_after_s)
        self._turns = asyncio.Semaphore(config.in_flight)

    def read(self, key: str, start: int, length: int, target: str) -> Future[Buffer]:
        """Read a range; one longer than a part is read in parts, in parallel."""
        if length > self._config.part_bytes:
            return submit(self._read_long(key, start, length, target))
        return submit(self._get(target, lambda store: range_of(store, key, start, length)))

    def read_part(self, key: str, start: int, length: int, target: str) -> Future[Part]:
        """Read a range up to the object's end, and its description."""
        return submit(self._get(target, lambda store: part_of(store, key, start, length)))

    def read_whole(self, key: str, target: str) -> Future[Buffer]:
        """Read an object: its first part, then the others in parallel."""
        return submit(self._read_whole(key, target))

    async def request(self, target: str, make: Callable[[ObjectStore], Awaitable[_T]]) -> _T:
        """Make a request of the caller's on the background loop, with the usual retries."""
        return await self._in_turn(target, lambda: make(self._connections.reader))

    def head(self, key: str, target: str) -> Future[ObjectInfo]:
        """Return an object's description."""

        async def fetch(store: ObjectStore) -> ObjectInfo:
            try:
                return info_of(await obstore.head_async(store, key))
            except (BaseError, FileNotFoundError) as error:  # the client takes 405 for the latter
                if self._location.kind != "http" or not is_refused(error):
                    raise
            # A signed URL is for GET alone, and some web servers answer nothing else. The body is
            # not read: the answer's head describes the object.
            return info_of((await obstore.get_async(store, key)).meta)

        return submit(self._get(target, fetch))

    def list(
        self, prefix: str, target: str, after: str | None = None
    ) -> Iterator[builtins.list[ObjectInfo]]:
        """Yield pages, of the keys after one if that is given.

        After a failure the listing resumes after the last object received.
        """
        listing = PagedListing(prefix, resumable=self._location.kind != "http", after=after)
        while found := submit(self.request(target, listing.next_page)).result():
            yield found

    def put(self, key: str, data: PutData, target: str, *, size_bytes: int | None = None) -> None:
        """Write an object, in parts where it is longer than one.

        With new credentials, where there are any, it is tried again if the data are repeatable.
        `size_bytes` is that of a stream whose size is known.
        """
        part_bytes = part_size(size_bytes or size_of(data), self._config.part_bytes)
        try:
            self._put(key, data, target, part_bytes)
        except DeniedError:
            if not (is_repeatable(data) and self._reconnect()):
                raise
        else:
            return
        self._put(key, data, target, part_bytes)

    def _put(self, key: str, data: PutData, target: str, part_bytes: int) -> None:
        groups = regrouped(pieces_of(data), part_bytes)
        first, second = next(groups, b""), next(groups, None)
        if second is not None and self._location.kind != "http":
            self._renew()
            upload = Upload(self._connections.writer, key, part_bytes)
            upload.run(
                chain([first, second], groups),
                lambda send: self._retrier.run_without_retry(target, send),
            )
            return
        # Plain web servers do not accept parts.
        whole = first if second is None else b"".join([first, second, *groups])
        submit(
            self.request(
                target, lambda store: obstore.put_async(store, key, whole, use_multipart=False)
            )
        ).result()

    def create(self, key: str, data: bytes, target: str) -> Future[bool]:
        """Write a small object unless it exists; return whether it was written."""

        async def send(store: ObjectStore) -> bool:
            # Plain web servers support no conditions, and some S3 servers ignore them.
            with suppress(FileNotFoundError):
                await obstore.head_async(store, key)
                return False
            mode: PutMode = "overwrite" if self._location.kind == "http" else "create"
            try:
                await obstore.put_async(store, key, data, use_multipart=False, mode=mode)
            except AlreadyExistsError:
                return False
            return True

        return submit(self.request(target, send))

    def delete(self, key: str, target: str) -> Future[None]:
        """Remove an object; a missing one is no error."""

        async def remove() -> None:
            with suppress(NotFoundError):
                await self.request(target, lambda store: obstore.delete_async(store, key))

        return submit(remove())

    def close(self) -> None:
        """Drop connections; new ones are made when they are needed."""
        self._connections = Connections(self._location, self._config)

    async def _read_long(self, key: str, start: int, length: int, target: str) -> Buffer:
        whole = bytearray(length)
        url = target.partition(" (bytes ")[0]
        await self._fill(
            whole, start, 0, url, lambda store, first, size: range_of(store, key, first, size)
        )
        return memoryview(whole).toreadonly()

    async def _read_whole(self, key: str, target: str) -> Buffer:
        async def fetch(store: ObjectStore, start: int, length: int) -> Buffer:
            later = await part_of(store, key, start, length)
            if (later.info.etag, later.info.size_bytes) != (info.etag, info.size_bytes):
                raise WrongAnswerError("the object changed while it was read")
            return checked_range(later.data, length)

        most_bytes = self._config.part_bytes
        first = await self._get(target, lambda store: part_of(store, key, 0, most_bytes))
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
        """Fill `whole`, which starts at `start` in its object, from its byte `filled` on."""
        concurrency = asyncio.Semaphore(_CONCURRENT_PARTS)

        async def fill(offset: int, size: int) -> None:
            first = start + offset
            target_range = f"{target} (bytes {first}-{first + size - 1})"
            async with concurrency:
                part = await self._get(target_range, lambda store: fetch(store, first, size))
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

        answer = await self._in_turn(target, attempt)
        if LOADER_HOOKS.reads is not None:
            LOADER_HOOKS.reads.received(answer)
        return answer

    async def _in_turn(self, target: str, attempt: Callable[[], Awaitable[_T]]) -> _T:
        async with self._turns:
            return await self._retrier.run(target, attempt)

    def _renew(self) -> None:
        """Use new credentials before an upload that cannot be retried."""
        # A provider renews them itself, and making another one may run a program.
        if "credential_provider" not in self._connections.settings:
            with suppress(UsageError):  # a profile being written: the old ones may still be valid
                self._reconnect()

    def _reconnect(self) -> bool:
        """Reconnect where the credentials have changed; return whether they had."""
        if read_settings(self._location) == self._connections.settings:
            return False
        self._connections = Connections(self._location, self._config)
        return True
