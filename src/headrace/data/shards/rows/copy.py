"""A remote index on the local disk, where all workers of a host map the same file.

Indexes are named by fingerprint, manifests by their own checksum too (the same members may have
been packed with other options), so one folder serves all datasets and jobs, and nothing in it can
be stale. One process copies, holding a lock that the kernel drops when it dies; the others, and
this one meanwhile, read by range until the file appears.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import google_crc32c

from headrace.core import env
from headrace.core.errors import CorruptError, StorageError
from headrace.data.shards.manifest import INDEX_NAME, Manifest
from headrace.data.shards.tar.range_stream import RangeStream
from headrace.data.storage import Store
from headrace.data.storage.atomic import write_whole

_CHUNK_BYTES = 2**20
_UNUSED_S = 14 * 24 * 3600.0  # indexes that no job opened for two weeks make room


class IndexCopy:
    """The local copy of one dataset's index and manifest, there or not yet.

    Args:
        folder: Where copies lie; None where no folder can be written, so that none ever appears.
        fingerprint: The dataset's.
    """

    def __init__(self, folder: Path | None, fingerprint: str) -> None:
        self._folder = folder
        self._fingerprint = fingerprint
        self._thread: threading.Thread | None = None

    def index(self) -> Path | None:
        """Return the index's file, or None while it is not there."""
        return self._existing(".arrow")

    def manifest(self, crc32c: int) -> bytes | None:
        """Return the bytes of the manifest with this checksum, or None where it is not there."""
        path = self._existing(_manifest_suffix(crc32c))
        data = path.read_bytes() if path else b""
        return data if google_crc32c.value(data) == crc32c else None

    def keep_manifest(self, manifest: bytes) -> None:
        """Keep the manifest, so that workers need not fetch it; a full disk is no error."""
        crc32c = google_crc32c.value(manifest)
        if self._folder is not None and self.manifest(crc32c) is None:
            with suppress(OSError):
                write_whole(self._file(_manifest_suffix(crc32c)), [manifest], durable=False)

    def fetch(self, store: Store, manifest: Manifest) -> None:
        """Copy the index now, unless another process is at it; a full disk is no error.

        Raises:
            CorruptError: What arrives is not what the manifest says.
        """
        if self._folder is None or self.index() is not None:
            return
        try:
            self._locked_fetch(store, manifest)
        except StorageError:
            raise
        except OSError:  # no room, or read-only: reading by range goes on
            return

    def fetch_in_background(self, store: Store, manifest: Manifest) -> None:
        """Copy the index while this process goes on; whatever fails, it reads by range."""
        if self._folder is not None and self.index() is None:
            self._thread = threading.Thread(
                target=self._quiet_fetch,
                args=(store, manifest),
                name="headrace-index-copy",
                daemon=True,
            )
            self._thread.start()

    def discard(self) -> None:
        """Remove an index that turned out to be damaged; a later job copies it anew."""
        if self._folder is not None:
            with suppress(OSError):
                self._file(".arrow").unlink()

    def wait(self, timeout_s: float) -> None:
        """Wait until this process copies no longer, `timeout_s` seconds at most."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _quiet_fetch(self, store: Store, manifest: Manifest) -> None:
        # The reader by range meets the same fault where it matters, and raises it there.
        with suppress(StorageError):
            self.fetch(store, manifest)

    def _locked_fetch(self, store: Store, manifest: Manifest) -> None:
        with self._file(".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            try:
                if self.index() is None:
                    self._remove_unused()
                    write_whole(self._file(".arrow"), _checked(store, manifest))
                with suppress(OSError):
                    self._file(".lock").unlink()
            finally:  # to close it is not enough: a child forked meanwhile has it
                fcntl.flock(lock, fcntl.LOCK_UN)

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


def copies_folder(cache_dir: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder for copies, made where needed; None where none can be written.

    `cache_dir`, else HEADRACE_CACHE_DIR, else a folder of this user's own below the system's
    temporary folder.
    """
    chosen = cache_dir or env.CACHE_DIR.get()
    folder = (
        Path(chosen) / "indexes"
        if chosen
        else Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"
    )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    # In a temporary folder someone else may have made one of this name, to serve us their index.
    shared = not chosen and (status.st_uid != os.getuid() or status.st_mode & 0o022)
    if shared or not stat.S_ISDIR(status.st_mode) or not os.access(folder, os.W_OK):
        return None
    return folder


def _checked(store: Store, manifest: Manifest) -> Iterator[bytes]:
    stream = RangeStream(store, INDEX_NAME, manifest.index_bytes)
    checksum = 0
    try:
        while chunk := stream.read(_CHUNK_BYTES):
            checksum = google_crc32c.extend(checksum, chunk)
            yield chunk
    finally:
        stream.close()
    if checksum != manifest.index_crc32c:
        raise CorruptError(
            f"{store.url}/{INDEX_NAME}: its checksum is not the manifest's. Copy index.arrow and "
            "manifest.json together, or pack the dataset again."
        )
