"""The object-store client for a location: endpoint, credentials, timeouts."""

from __future__ import annotations

import base64
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from headrace.data.storage.config import StorageConfig
from headrace.data.storage.settings import read_settings
from headrace.data.storage.urls import Location

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

_NO_RETRIES: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(0)}


class Connections:
    """The clients of one location; each has connections of its own.

    Making one takes some 10 ms: the hedge and the writer, which a reading worker hardly ever needs,
    are made at their first use.

    Args:
        location: The location.
        config: Retries and timeouts.

    Attributes:
        settings: What the clients are made from; compared to tell new credentials from old.
        reader: For everything but what follows; never retries by itself.

    Raises:
        UsageError: Settings in the environment or in a profile that cannot be.
    """

    def __init__(self, location: Location, config: StorageConfig) -> None:
        self._location = location
        self._config = config
        self._client = _client_options(config)
        self.settings: dict[str, Any] = read_settings(location)
        self.reader: ObjectStore = self._open(self._client, _NO_RETRIES)

    @cached_property
    def hedge(self) -> ObjectStore:
        """For second attempts: opens a fresh connection for each."""
        return self._open({**self._client, "pool_max_idle_per_host": "0"}, _NO_RETRIES)

    @cached_property
    def writer(self) -> ObjectStore:
        """For uploads, whose parts it retries by itself within the policy's deadline."""
        return self._open(self._client, _upload_retries(self._config))

    def _open(self, client: ClientConfig, retry: RetryConfig) -> ObjectStore:
        return _open(self._location, self.settings, client, retry)


def _open(
    location: Location, settings: dict[str, Any], client: ClientConfig, retry: RetryConfig
) -> ObjectStore:
    options: dict[str, Any] = {"client_options": client, "retry_config": retry}
    if location.kind == "s3":
        return S3Store(location.root, **settings, **options)
    if location.kind == "gs":
        return GCSStore(location.root, **settings, **options)
    if location.kind == "az":
        return AzureStore(location.root, **settings, **options)
    server = urlsplit(location.secret_url)
    if server.username is not None:
        user = f"{unquote(server.username)}:{unquote(server.password or '')}".encode()
        authorization = "Basic " + base64.b64encode(user).decode()
        options["client_options"] = {**client, "default_headers": {"Authorization": authorization}}
    # Without the path, which is part of each key, and with the query, which may be a signature.
    plain = server._replace(netloc=server.netloc.rpartition("@")[2], path="", fragment="")
    return HTTPStore(urlunsplit(plain), **options)


def _client_options(config: StorageConfig) -> ClientConfig:
    return {
        # An endpoint that says http is meant; nothing falls back from https to http.
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
