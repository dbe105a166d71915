"""Where the index's record batches come from: mapped memory, or ranges of a remote file."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from headrace.core.errors import DatasetError
from headrace.data.shards.manifest import INDEX_NAME, Manifest
from headrace.data.shards.rows.columns import Kinds
from headrace.data.shards.rows.copy import IndexCopy
from headrace.data.shards.rows.message import FINGERPRINT, Rows
from headrace.data.storage import Buffer, Store


class Blocks(Protocol):
    """Record batches by number."""

    @property
    def mapped(self) -> bool:
        """Whether batches are views of one shared mapping, so that keeping them costs nothing."""
        ...

    def rows(self, number: int) -> Rows:
        """Return the rows of one record batch; raises DatasetError where they are damaged."""
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

    def __init__(self, index: memoryview, manifest: Manifest, where: str) -> None:
        if len(index) != manifest.index_bytes:
            raise DatasetError(
                f"{where} has {len(index)} bytes, the manifest says {manifest.index_bytes}: it is "
                "cut or belongs to another dataset. Copy index.arrow and manifest.json together."
            )
        _check_fingerprint(index, manifest, where)
        self._index = index
        self._where = where
        self._shards = manifest.shards
        self._kinds = kinds_of(manifest)

    @classmethod
    def map(cls, path: Path, manifest: Manifest, where: str) -> WholeBlocks:
        """Map a local file; raises DatasetError where it cannot be read."""
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file
            reason = error.strerror if isinstance(error, OSError) else error
            raise DatasetError(
                f"{where} cannot be read ({reason}). Restore it, or pack again."
            ) from None
        return cls(memoryview(mapped), manifest, where)

    def rows(self, number: int) -> Rows:
        """Return the rows of one record batch, views of the index; raises DatasetError."""
        shard = self._shards[number]
        end = shard.index_start + shard.index_bytes
        try:
            rows = Rows.parse(self._index[shard.index_start : end], self._kinds)
        except ValueError as error:
            raise DatasetError(
                f"{self._where}, the rows of {shard.name or f'group {number}'}: {error}. Restore "
                "it, or pack again."
            ) from None
        if rows.count != shard.num_samples:
            raise DatasetError(
                f"{self._where} has {rows.count} rows for {shard.name or f'group {number}'}, the "
                f"manifest says {shard.num_samples}. Copy index.arrow and manifest.json together."
            )
        return rows

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
        self._whole: WholeBlocks | None = None
        self._coming: dict[int, Future[Buffer]] = {}

    @property
    def mapped(self) -> bool:
        """Whether the local copy has appeared."""
        return self._local() is not None

    def rows(self, number: int) -> Rows:
        """Return the rows of one record batch; raises DatasetError where they are another's."""
        whole = self._local()
        if whole is not None:
            self._coming.clear()
            return whole.rows(number)
        # Taken out first: a read that failed is asked for again the next time.
        future = self._coming.pop(number, None) or self._submit(number)
        return self._checked(number, future.result())

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

    def _checked(self, number: int, message: Buffer) -> Rows:
        rows: Rows | None = None
        with suppress(ValueError):
            rows = Rows.parse(memoryview(message), self._kinds)
        if rows is None or rows.digest(self._kinds) != self._manifest.shards[number].digest:
            raise DatasetError(
                f"{self._store.url}/{INDEX_NAME} belongs to another dataset or is damaged: its "
                f"batch {number} is not the manifest's. Copy index.arrow and manifest.json "
                f"together, then run `headrace data lint {self._store.url}`."
            )
        return rows

    def _local(self) -> WholeBlocks | None:
        if self._whole is None:
            path = self._copy.index()
            if path is not None:
                try:
                    self._whole = WholeBlocks.map(path, self._manifest, str(path))
                except DatasetError:  # damaged: the index itself is still where it was
                    self._copy.discard()
        return self._whole


def kinds_of(manifest: Manifest) -> Kinds:
    """Return extension -> kind, in the order of the index's columns."""
    return {extension.name: extension.kind for extension in manifest.extensions}


def _check_fingerprint(index: memoryview, manifest: Manifest, where: str) -> None:
    """Raise DatasetError unless the index is of this dataset: its schema says whose it is."""
    head = bytes(index[: manifest.shards[0].index_start]) if manifest.shards else bytes(index)
    if manifest.fingerprint.encode() in head:
        return
    whose = "another's" if FINGERPRINT in head else "none"
    raise DatasetError(
        f"{where} belongs to another dataset or is damaged: the manifest's fingerprint is "
        f"{manifest.fingerprint[:12]}, the index has {whose}. Copy index.arrow and manifest.json "
        "together."
    )
