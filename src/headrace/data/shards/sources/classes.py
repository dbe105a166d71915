"""Class names from elsewhere, so that two splits number their classes alike."""

from __future__ import annotations

from headrace.core.errors import DatasetError
from headrace.data.shards.index import read_manifest_bytes
from headrace.data.shards.manifest import Manifest
from headrace.data.storage import open_store, safe_url, split_url


def read_classes(url: str) -> tuple[str, ...]:
    """Return the class names of a dataset, or of a text file (.txt) with one name a line.

    Raises:
        DatasetError: There are none, or one stands there twice.
    """
    where = safe_url(url)
    if where.endswith(".txt"):
        folder, name = split_url(url)
        lines = bytes(open_store(folder).get(name)).decode("utf-8", "replace").splitlines()
        classes = tuple(line.strip() for line in lines if line.strip())
    else:
        store = open_store(url)
        classes = Manifest.from_json(read_manifest_bytes(store), store.url).classes
    if not classes:
        raise DatasetError(f"{where} names no classes.")
    if len(set(classes)) < len(classes):
        twice = next(name for name in classes if classes.count(name) > 1)
        raise DatasetError(f"{where} names the class {twice!r} twice.")
    return classes
