"""Object stores by URL: local, s3, gs, az, http, memory; retries, deadlines, disk cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from headrace.core.errors import UsageError
from headrace.core.lazy import lazy_importer
from headrace.data.storage.client.fork_state import declare_leaf
from headrace.data.storage.local_stores import LocalStore, MemoryStore
from headrace.data.storage.remote_store import RemoteStore
from headrace.data.storage.store import (
    Buffer,
    CacheableStore,
    ObjectInfo,
    Part,
    PutData,
    RangeStream,
    RetryPolicy,
    StorageConfig,
    Store,
    pieces_of,
)
from headrace.data.storage.urls import (
    Location,
    join_url,
    parent_url,
    parse_url,
    safe_url,
    split_url,
    streamed_url,
)

if TYPE_CHECKING:
    from headrace.data.storage.cache.cached_store import CachedStore as CachedStore

__all__ = [
    "Buffer",
    "CachedStore",
    "Location",
    "ObjectInfo",
    "Part",
    "PutData",
    "RangeStream",
    "RemoteStore",
    "RetryPolicy",
    "StorageConfig",
    "Store",
    "declare_leaf",
    "join_url",
    "open_store",
    "parent_url",
    "parse_url",
    "pieces_of",
    "safe_url",
    "split_url",
    "streamed_url",
]

# The disk cache is imported at its first use: most workers have none.
__getattr__ = lazy_importer(__name__, {"CachedStore": "headrace.data.storage.cache.cached_store"})


def open_store(
    url: str, *, config: StorageConfig | None = None, client: Literal["auto", "direct"] = "auto"
) -> CacheableStore:
    """Return the store at `url`; no request is sent before its first use.

    Credentials, endpoint and region come from where each cloud's own tools find them: AWS
    variables and profiles, GOOGLE_APPLICATION_CREDENTIALS, AZURE variables; without any, requests
    are anonymous.

    Args:
        url: A plain path, file://, s3://, gs://, az://, http(s):// or memory://.
        config: Retries, hedging, connections; None for the defaults.
        client: "auto": in a process that may fork, a storage subprocess makes the requests; in a
            leaf (see `declare_leaf`) this process does. "direct": this process does, and must not
            fork.

    Raises:
        UsageError: The URL names no store.
    """
    settings: object = StorageConfig() if config is None else config
    if not isinstance(settings, StorageConfig):
        raise UsageError(
            f"storage={settings!r}: give a headrace.StorageConfig, as StorageConfig(in_flight=16)."
        )
    location = parse_url(url)
    if location.kind == "local":
        return LocalStore(location)
    if location.kind == "memory":
        return MemoryStore(location)
    return RemoteStore(location, settings, client)
