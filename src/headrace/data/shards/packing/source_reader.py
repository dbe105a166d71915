"""Reads the files of samples, many at once and ahead of use."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from headrace.core.errors import CorruptError, DeniedError, NotFoundError
from headrace.data.shards.sources.samples import SourceFile, SourceSample
from headrace.data.storage import Store, open_store, split_url

_THREADS = 16
_AHEAD_BYTES = 64 * 2**20  # of files whose size is known
_AHEAD_SAMPLES = 64
_STORES = 256  # open at once, for tables whose URLs lie in many folders

UNREADABLE = (NotFoundError, DeniedError, CorruptError)
"""What tells of the file; other errors tell of the store, and end the work.

So does CredentialsError, which whoever catches these lets pass first.
"""


class SourceReader:
    """Files of one source.

    Args:
        url: What relative paths lie below.
    """

    def __init__(self, url: str) -> None:
        self._store = open_store(url)
        self._stores: dict[str, Store] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-read")

    def close(self) -> None:
        """Give up what is being read."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def read(
        self, samples: Iterable[SourceSample]
    ) -> Iterator[tuple[SourceSample, list[Future[bytes]]]]:
        """Yield samples in order, each with its files' contents on their way."""
        ahead: deque[tuple[SourceSample, list[Future[bytes]]]] = deque()
        ahead_bytes = 0
        for sample in samples:
            ahead.append((sample, [self._threads.submit(self.get, f) for f in sample.files]))
            ahead_bytes += _size(sample)
            while len(ahead) > _AHEAD_SAMPLES or (ahead_bytes > _AHEAD_BYTES and len(ahead) > 1):
                ahead_bytes -= _size(ahead[0][0])
                yield ahead.popleft()
        yield from ahead

    def get(self, file: SourceFile) -> bytes:
        """Return one file; raises StorageError."""
        if "://" not in file.path and not file.path.startswith("/"):
            return bytes(self._store.get(file.path))
        folder, name = split_url(file.path)
        store = self._stores.get(folder)
        if store is None:
            if len(self._stores) >= _STORES:
                self._stores.clear()
            store = self._stores[folder] = open_store(folder)
        return bytes(store.get(name))


def _size(sample: SourceSample) -> int:
    return sum(max(file.size_bytes, 0) for file in sample.files)
