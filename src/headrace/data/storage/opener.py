"""From a URL to its store."""

from __future__ import annotations

from typing import Literal

from headrace.data.storage.config import StorageConfig
from headrace.data.storage.local import LocalStore
from headrace.data.storage.memory import MemoryStore
from headrace.data.storage.remote import RemoteStore
from headrace.data.storage.store import CacheableStore
from headrace.data.storage.urls import parse_url


def open_store(
    url: str,
    *,
    config: StorageConfig | None = None,
    client: Literal["auto", "direct"] = "auto",
) -> CacheableStore:
    """Return the store at `url`; nothing is sent before its first use.

    Credentials, endpoint and region come from where each cloud's own tools find them: AWS
    variables and profiles, GOOGLE_APPLICATION_CREDENTIALS, AZURE variables; without any, requests
    are anonymous.

    Args:
        url: A plain path, file://, s3://, gs://, az://, http(s):// or memory://.
        config: Retries, hedging, connections; the defaults where None.
        client: "auto": in a process that may fork, a helper process makes the requests; in a leaf
            (see `declare_leaf`) this one does. "direct": this one does, and must not fork after.

    Raises:
        UsageError: The URL names no store.
    """
    location = parse_url(url)
    if location.kind == "local":
        return LocalStore(location)
    if location.kind == "memory":
        return MemoryStore(location)
    return RemoteStore(location, config or StorageConfig(), client)
