"""URL -> object store: local, s3, gs, az, http, memory; retries, deadlines, disk cache."""

from headrace.data.storage.cached import CachedStore
from headrace.data.storage.config import RetryPolicy, StorageConfig
from headrace.data.storage.opener import open_store
from headrace.data.storage.process import declare_leaf
from headrace.data.storage.store import Buffer, ObjectInfo, PutData, Store
from headrace.data.storage.urls import join_url, safe_url, split_url

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
