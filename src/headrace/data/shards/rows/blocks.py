"""Where the index's record batches come from: mapped memory, or ranges of a remote file."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from headrace.core.errors import DatasetError
from headrace.data.shards.manifest import INDEX_NAME, Manifest
from headrace.data.shards.rows.columns import Kinds, digest, schema_of
from headrace.data.shards.rows.copy import IndexCopy
from headrace.data.shards.rows.file import check_fingerprint, read_batch
from headrace.data.storage import Buffer, Store


class Blocks(Protocol):
    """Record batches by number."""

    @property
    def mapped(self) -> bool:
        """Whether batches are views of one shared mapping, so that keeping them costs nothing."""
        ...

    def batch(self, number: int) -> pa.RecordBatch:
        """Return one record batch."""
        ...

    def prefetch(self, numbers: Iterable[int]) -> None:
        """Begin reading some batches that will be asked for."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Wait for a local copy that is on its way; return whether all is local."""
        ...


class WholeBlocks:
    """All of an index in memory, mapped or not.

    Args:
        index: The file's bytes.
        manifest: The dataset's.
        where: The index's place, for messages.

    Raises:
        DatasetError: The index belongs to another dataset, or is damaged.
    """

    mapped = True

    def __init__(self, index: pa.Buffer, manifest: Manifest, where: str) -> None:
        if index.size != manifest.index_bytes:
            raise DatasetError(
                f"{where} has {index.size} bytes, the manifest says {manifest.index_bytes}: it is "
                "cut or belongs to another dataset. Copy index.arrow and manifest.json together."
            )
        check_fingerprint(index, manifest.fingerprint, where)
        self._index = index
        self._shards = manifest.shards
        self._schema = schema_of(kinds_of(manifest))

    @classmethod
    def map(cls, path: Path, manifest: Manifest, where: str) -> WholeBlocks:
        """Map a local file; raises DatasetError where it cannot be read."""
        try:
            with pa.memory_map(str(path)) as file:
                return cls(file.read_buffer(), manifest, where)
        except OSError as error:
            if isinstance(error, DatasetError):
                raise
            raise DatasetError(
                f"{where} cannot be read ({error.strerror or error}). Restore it, or pack again."
            ) from None

    def batch(self, number: int) -> pa.RecordBatch:
        """Return one record batch, a view of the index."""
        shard = self._shards[number]
        return read_batch(self._index.slice(shard.index_start, shard.index_bytes), self._schema)

    def prefetch(self, numbers: Iterable[int]) -> None:
        """Do nothing: all is there."""

    def wait(self, timeout_s: float) -> bool:  # noqa: ARG002  (the protocol's)
        """Return at once: all is there."""
        return True


class RangedBlocks:
    """Batches fetched by range, each checked against the manifest, until a local copy appears.

    Args:
        store: Where the index lies.
        manifest: The dataset's.
        copy: The local copy that may appear.
    """

    def __init__(self, store: Store, manifest: Manifest, copy: IndexCopy) -> None:
        self._store = store
        self._manifest = manifest
        self._copy = copy
        self._kinds = kinds_of(manifest)
        self._schema = schema_of(self._kinds)
        self._whole: WholeBlocks | None = None
        self._coming: dict[int, Future[Buffer]] = {}

    @property
    def mapped(self) -> bool:
        """Whether the local copy has appeared."""
        return self._local() is not None

    def batch(self, number: int) -> pa.RecordBatch:
        """Return one record batch; raises DatasetError where it is another dataset's."""
        whole = self._local()
        if whole is not None:
            self._coming.clear()
            return whole.batch(number)
        self.prefetch([number])
        future = self._coming.get(number) or self._submit(number)
        message = future.result()
        self._coming.pop(number, None)
        return self._checked(number, message)

    def prefetch(self, numbers: Iterable[int]) -> None:
        """Begin fetching the batches that are not on their way."""
        if self._local() is None:
            for number in numbers:
                if number not in self._coming:
                    self._coming[number] = self._submit(number)

    def wait(self, timeout_s: float) -> bool:
        """Wait for this process's copying to end; return whether the copy is there."""
        self._copy.wait(timeout_s)
        return self.mapped

    def _submit(self, number: int) -> Future[Buffer]:
        shard = self._manifest.shards[number]
        return self._store.submit_range(INDEX_NAME, shard.index_start, shard.index_bytes)

    def _checked(self, number: int, message: Buffer) -> pa.RecordBatch:
        try:
            batch = read_batch(pa.py_buffer(message), self._schema)
            same = digest(batch, self._kinds) == self._manifest.shards[number].digest
        except (pa.ArrowInvalid, OSError, ValueError):
            same = False
        if not same:
            raise DatasetError(
                f"{self._store.url}/{INDEX_NAME} belongs to another dataset or is damaged: its "
                f"batch {number} is not the manifest's. Copy index.arrow and manifest.json "
                f"together, then run `headrace data lint {self._store.url}`."
            )
        return batch

    def _local(self) -> WholeBlocks | None:
        if self._whole is None:
            path = self._copy.index()
            if path is not None:
                self._whole = WholeBlocks.map(path, self._manifest, str(path))
        return self._whole


def kinds_of(manifest: Manifest) -> Kinds:
    """Return extension -> kind, in the order of the index's columns."""
    return {extension.name: extension.kind for extension in manifest.extensions}
