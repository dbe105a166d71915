"""Listing a source's objects into columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.core.arrow_arrays import large_strings
from headrace.core.errors import DatasetError
from headrace.data.storage import ObjectInfo, Store

_CHUNK = 65_536
_EXAMPLES = 5
_TELL_EVERY = 1000


class StringColumn:
    """Strings appended one by one; held as Arrow from every 65,536 on."""

    def __init__(self) -> None:
        self._tail: list[str] = []
        self._chunks: list[pa.LargeStringArray] = []

    def append(self, text: str) -> None:
        """Add one."""
        self._tail.append(text)
        if len(self._tail) == _CHUNK:
            self._flush()

    def array(self) -> pa.LargeStringArray:
        """Return all of them."""
        self._flush()
        return pa.concat_arrays(self._chunks)

    def _flush(self) -> None:
        # Names that are not UTF-8 cannot be told apart from others once they are written.
        self._chunks.append(large_strings(self._tail))
        self._tail = []


class Ignored:
    """Files that belong to no sample: counted, the first few named."""

    def __init__(self) -> None:
        self.count = 0
        self.examples: list[str] = []

    def add(self, path: str) -> None:
        """Note one."""
        self.count += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(path)


Listed = Callable[[int], None]
"""Called with the number of files listed so far, now and then."""


def list_files(store: Store, listed: Listed, folder: str = "") -> Iterator[ObjectInfo]:
    """Yield a source's files.

    Args:
        store: The source.
        listed: Told how many there are so far.
        folder: Only what lies below it.

    Raises:
        DatasetError: A name is not UTF-8, which neither a tar nor an index can hold safely.
    """
    for count, info in enumerate(store.list(folder), start=1):
        if count % _TELL_EVERY == 0:
            listed(count)
        try:
            info.path.encode()
        except UnicodeEncodeError:
            raise DatasetError(
                f"{store.url}: the name of {info.path!r} is not UTF-8. Rename it."
            ) from None
        yield info


def int_column(values: list[int]) -> NDArray[np.int64]:
    """Return whole numbers as an array."""
    return np.array(values, dtype=np.int64)
