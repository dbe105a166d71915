"""URL -> object store: local, s3, gs, az, http, memory; retries, deadlines, disk cache."""

from typing import TYPE_CHECKING

from headrace.core.lazy import importer
from headrace.data.storage.config import RetryPolicy, StorageConfig
from headrace.data.storage.opener import open_store
from headrace.data.storage.process import declare_leaf
from headrace.data.storage.store import Buffer, ObjectInfo, PutData, Store
from headrace.data.storage.urls import join_url, safe_url, split_url

if TYPE_CHECKING:
    from headrace.data.storage.cached import CachedStore as CachedStore

__all__ = [
    "Buffer",
    "CachedStore",
    "ObjectInfo",
    "PutData",
    "RetryPolicy",
    "StorageConfig",
    "Store",
    "declare_leaf",
    "join_url",
    "open_store",
    "safe_url",
    "split_url",
]

# The disk cache is imported at its first use: most workers have none.
__getattr__ = importer(__name__, {"CachedStore": "headrace.data.storage.cached"})
