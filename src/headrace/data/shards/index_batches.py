"""Record batches of an index, mapped or read by range, and the local copy of a remote index.

Copies of indexes are named by fingerprint, those of manifests also by their own checksum (the same
members may have been packed with other options), so one folder serves all datasets and jobs, and
nothing in it can be outdated. One process copies, holding a lock that the kernel releases when it
dies; meanwhile all processes read by range until the file appears.
"""

from __future__ import annotations

import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeAlias

import google_crc32c
import numpy as np

from headrace.core import env
from headrace.core.errors import CorruptError, DatasetError, StorageError
from headrace.core.file_lock import try_lock, unlock
from headrace.core.files import write_atomically
from headrace.data.shards.index_rows import FINGERPRINT, IndexRows, Kinds
from headrace.data.shards.manifest import INDEX_NAME, DatasetManifest
from headrace.data.storage import Buffer, RangeStream, Store
from headrace.data.storage.repeated_reads import read_sound
from headrace.data.storage.urls import cache_folder

_CHUNK_BYTES = 2**20
_UNUSED_S = 14 * 24 * 3600.0  # indexes that no job opened for two weeks are removed


class IndexCopy:
    """The local copy of one dataset's index and manifest, which may not exist yet.

    `folder` is that of all copies; None where none is writable, so that there never is a copy.
    """

    def __init__(self, folder: Path | None, fingerprint: str) -> None:
        self._folder = folder
        self._fingerprint = fingerprint

    def index(self) -> Path | None:
        """Return the index's file, or None while there is none."""
        return self._existing(".arrow")

    def manifest(self, crc32c: int) -> bytes | None:
        """Return the bytes of the manifest with this checksum, or None."""
        path = self._existing(_manifest_suffix(crc32c))
        data = path.read_bytes() if path else b""
        return data if google_crc32c.value(data) == crc32c else None

    def store_manifest(self, manifest: bytes) -> None:
        """Store the manifest, so that workers need not fetch it; ignores a full disk."""
        crc32c = google_crc32c.value(manifest)
        if self._folder is not None and self.manifest(crc32c) is None:
            with suppress(OSError):
                write_atomically(self._file(_manifest_suffix(crc32c)), [manifest], durable=False)

    def fetch(self, store: Store, manifest: DatasetManifest) -> None:
        """Copy the index, unless another process does or the disk is full; raises CorruptError."""
        if self._folder is None or self.index() is not None:
            return
        try:
            self._locked_fetch(store, manifest)
        except StorageError:
            raise
        except OSError:  # full or read-only: batches are still read by range
            return

    def fetch_in_background(self, store: Store, manifest: DatasetManifest) -> None:
        """Copy the index in a thread; after a failure this process reads by range."""
        if self._folder is not None and self.index() is None:
            arguments = (store, manifest)
            threading.Thread(
                target=self._quiet_fetch, args=arguments, name="headrace-index-copy", daemon=True
            ).start()

    def discard(self) -> None:
        """Remove a damaged copy; a later job copies the index again."""
        if self._folder is not None:
            with suppress(OSError):
                self._file(".arrow").unlink()

    def _quiet_fetch(self, store: Store, manifest: DatasetManifest) -> None:
        # Reading by range meets the same fault where it matters, and raises it there.
        with suppress(StorageError):
            self.fetch(store, manifest)

    def _locked_fetch(self, store: Store, manifest: DatasetManifest) -> None:
        with self._file(".lock").open("a") as lock:
            if not try_lock(lock.fileno()):
                return
            try:
                if self.index() is None:
                    self._remove_unused()
                    file = self._file(".arrow")
                    read_sound(
                        lambda: write_atomically(file, _verified_chunks(store, manifest)),
                        CorruptError,
                    )
                with suppress(OSError):
                    self._file(".lock").unlink()
            finally:
                unlock(lock.fileno())

    def _remove_unused(self) -> None:
        assert self._folder is not None
        oldest = time.time() - _UNUSED_S
        for file in self._folder.iterdir():
            with suppress(OSError):
                if file.stat().st_mtime < oldest:
                    file.unlink()

    def _existing(self, suffix: str) -> Path | None:
        if self._folder is None:
            return None
        file = self._file(suffix)
        try:
            os.utime(file)
        except OSError:
            return file if file.exists() else None
        return file

    def _file(self, suffix: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{self._fingerprint}{suffix}"


def _manifest_suffix(crc32c: int) -> str:
    return f"-{crc32c:08x}.json"


def index_copies_dir(cache_dir: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder for copies, created if needed; None where none is writable.

    `cache_dir`, else HEADRACE_CACHE_DIR, else this user's own folder in the temporary folder.
    UsageError: it is no folder of this host.
    """
    chosen = cache_dir or env.CACHE_DIR.get()
    own_folder = Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"
    folder = cache_folder(chosen, env.CACHE_DIR.name) / "indexes" if chosen else own_folder
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    # In a shared temporary folder another user may have created it, to serve a false index.
    shared = not chosen and (status.st_uid != os.getuid() or status.st_mode & 0o022)
    if shared or not stat.S_ISDIR(status.st_mode) or not os.access(folder, os.W_OK):
        return None
    return folder


def _verified_chunks(store: Store, manifest: DatasetManifest) -> Iterator[bytes]:
    checksum = 0
    with closing(RangeStream(store, INDEX_NAME, manifest.index_bytes)) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            checksum = google_crc32c.extend(checksum, chunk)
            yield chunk
    if checksum != manifest.index_crc32c:
        raise CorruptError(
            f"{store.url}/{INDEX_NAME}: its checksum is not the manifest's. Copy index.arrow and "
            "manifest.json together, or pack the dataset again."
        )


class InMemoryBatches:
    """A complete index in memory, mapped or not; DatasetError: it is damaged or another's."""

    mapped = True
    """Whether batches are views of one shared mapping, so that keeping them costs no memory."""

    def __init__(self, index: memoryview, manifest: DatasetManifest, where: str) -> None:
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
    def map(cls, path: Path, manifest: DatasetManifest, where: str) -> InMemoryBatches:
        """Map a local file; raises DatasetError where it cannot be read."""
        try:
            mapped = np.memmap(path, mode="r")
        except (OSError, ValueError) as error:  # ValueError: an empty file
            reason = error.strerror if isinstance(error, OSError) else error
            raise DatasetError(
                f"{where} cannot be read ({reason}). Restore it, or pack again."
            ) from None
        return cls(mapped.data, manifest, where)

    def rows(self, number: int) -> IndexRows:
        """Return the rows of one record batch, views of the index.

        Raises DatasetError where their hash is not the manifest's: places and labels are data, too.
        """
        shard = self._shards[number]
        end = shard.index_start + shard.index_bytes
        try:
            rows = IndexRows.parse(self._index[shard.index_start : end], self._kinds)
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
        if rows.digest(self._kinds) != shard.digest:
            raise DatasetError(
                f"{self._where} is damaged: its rows for {shard.name or f'group {number}'} are not "
                "the manifest's. Restore it, or pack again."
            )
        return rows

    def prefetch(self, numbers: Iterable[int]) -> None:
        """Do nothing: all batches are in memory."""


class RangedBatches:
    """Batches fetched by range, each checked against the manifest, until a local copy exists."""

    def __init__(self, store: Store, manifest: DatasetManifest, copy: IndexCopy) -> None:
        self._store = store
        self._manifest = manifest
        self._copy = copy
        self._kinds = kinds_of(manifest)
        self._local_batches: InMemoryBatches | None = None
        self._pending: dict[int, Future[Buffer]] = {}

    @property
    def mapped(self) -> bool:
        """Whether the local copy exists."""
        return self._local() is not None

    def rows(self, number: int) -> IndexRows:
        """Return the rows of one record batch; raises DatasetError where their hash differs."""
        whole = self._local()
        if whole is not None:
            self._pending.clear()
            try:
                return whole.rows(number)
            except DatasetError:  # the copy is damaged, the index itself is not
                self._local_batches = None
                self._copy.discard()

        def read() -> IndexRows:
            # Removed first: after a failure it is read again.
            future = self._pending.pop(number, None) or self._submit(number)
            return self._checked(number, future.result())

        return read_sound(read, DatasetError)

    def prefetch(self, numbers: Iterable[int]) -> None:
        """Start fetching the batches that are not being fetched."""
        if self._local() is None:
            for number in numbers:
                if number not in self._pending:
                    self._pending[number] = self._submit(number)

    def _submit(self, number: int) -> Future[Buffer]:
        shard = self._manifest.shards[number]
        return self._store.submit_range(INDEX_NAME, shard.index_start, shard.index_bytes)

    def _checked(self, number: int, message: Buffer) -> IndexRows:
        rows: IndexRows | None = None
        with suppress(ValueError):
            rows = IndexRows.parse(memoryview(message), self._kinds)
        if rows is None or rows.digest(self._kinds) != self._manifest.shards[number].digest:
            raise DatasetError(
                f"{self._store.url}/{INDEX_NAME} belongs to another dataset or is damaged: its "
                f"batch {number} is not the manifest's. Copy index.arrow and manifest.json "
                f"together, then run `headrace data lint {self._store.url}`."
            )
        return rows

    def _local(self) -> InMemoryBatches | None:
        if self._local_batches is None:
            path = self._copy.index()
            if path is not None:
                try:
                    self._local_batches = InMemoryBatches.map(path, self._manifest, str(path))
                except DatasetError:  # the copy is damaged, the index itself is not
                    self._copy.discard()
        return self._local_batches


RecordBatches: TypeAlias = InMemoryBatches | RangedBatches
"""The record batches of an index by number."""


def kinds_of(manifest: DatasetManifest) -> Kinds:
    """Return extension -> kind, in the order of the index's columns."""
    return {extension.name: extension.kind for extension in manifest.extensions}


def _check_fingerprint(index: memoryview, manifest: DatasetManifest, where: str) -> None:
    """Raise DatasetError unless the index's schema has the manifest's fingerprint."""
    head = bytes(index[: manifest.shards[0].index_start]) if manifest.shards else bytes(index)
    if manifest.fingerprint.encode() in head:
        return
    owner = "another's" if FINGERPRINT in head else "none"
    raise DatasetError(
        f"{where} belongs to another dataset or is damaged: the manifest's fingerprint is "
        f"{manifest.fingerprint[:12]}, the index has {owner}. Copy index.arrow and manifest.json "
        "together."
    )
