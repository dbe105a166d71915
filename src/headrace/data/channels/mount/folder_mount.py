"""The mount of a URL at a folder while a job runs, its cache folder, and its reader ahead.

The reader ahead is a sidecar. It reads every file of the mount, in the order of names and many
concurrently, until it has read so many bytes; the mount's program caches them, so that the script
finds them there in time. An unreadable file is skipped: the script gets the error when it reads it.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock

from headrace.core import env
from headrace.core.file_lock import open_lock_file, try_lock
from headrace.core.files import write_text_atomically
from headrace.core.lazy import blake2b
from headrace.core.process.sidecar import Sidecar, SidecarParent, run_sidecar
from headrace.data.channels.mount.mount_program import (
    MountProgram,
    NoMountError,
    choose_programs,
    is_mounted,
    unmount,
)
from headrace.data.storage import parse_url


class MountCache:
    """The cache folder of a mount of a URL, locked until it is closed, or until this process ends.

    While other mounts use the URL's folder, it is a separate one with a number, which is removed as
    it is closed; after a kill the next mount of the URL uses or removes it. OSError: it cannot be
    used.
    """

    def __init__(self, caches: Path, url: str) -> None:
        caches.mkdir(parents=True, exist_ok=True)
        first = caches / blake2b(url.encode(), 12).hex()
        self.folder, self._lock = _lock_unused(first)
        self._is_kept = self.folder == first
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError:
            os.close(self._lock)
            raise
        _remove_abandoned(first, self.folder)

    def remove_other_versions(self, version: str | None) -> None:
        """Remove what is cached of other versions of the objects, all of it if None is known."""
        for entry in self.folder.iterdir():
            if entry.name != version:
                shutil.rmtree(entry, ignore_errors=True)

    def close(self) -> None:
        """Release the folder."""
        if not self._is_kept:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def _lock_unused(first: Path) -> tuple[Path, int]:
    """Return the first of a URL's cache folders that no mount uses, and its lock; raises OSError.

    It may not exist.
    """
    for number in itertools.count():
        folder = first.with_name(f"{first.name}-{number}") if number else first
        lock = open_lock_file(f"{folder}.lock")
        try:
            if try_lock(lock):
                return folder, lock
        except OSError:
            os.close(lock)
            raise
        os.close(lock)
    raise AssertionError


def _remove_abandoned(first: Path, own: Path) -> None:
    """Remove the separate cache folders that killed mounts of a URL have left."""
    for folder in first.parent.glob(f"{first.name}-*"):
        file = folder.with_name(f"{folder.name}.lock")
        if folder == own or not folder.is_dir() or not file.exists():
            continue
        with suppress(OSError):
            lock = open_lock_file(file)
            try:
                if try_lock(lock):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


_UP_S = 60.0
_END_S = 10.0
_LOOK_EVERY_S = 0.02
_AHEAD_SHARE = 0.9  # of the cache: more would evict the files read first
_LAST_BYTES = 2000  # of the program's output


class Mount:
    """A URL that a FUSE program shows as a folder, reading some bytes before the script needs them.

    NoMountError: the program ended, or mounted nothing within a minute.
    """

    def __init__(
        self, program: MountProgram, folder: Path, cache: MountCache, *, ahead_bytes: int
    ) -> None:
        self.folder = folder
        self._cache = cache
        self._read_ahead: Sidecar | None = None
        self._log = folder.with_name(f"{folder.name}.log")
        with self._log.open("wb") as log:
            # Call this in a thread that lives as long: the program ends with it.
            self._sidecar = Sidecar(
                "headrace.data.channels.mount.mount_program",
                {"folder": str(folder), "command": program.command},
                environment=env.sidecar_environment(program.environment),
                output=log,
            )
        try:
            self._wait(program.name)
            if ahead_bytes > 0:
                self._read_ahead = Sidecar(
                    "headrace.data.channels.mount.folder_mount",
                    {"folder": str(folder), "most_bytes": ahead_bytes},
                )
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """Unmount the folder, even if it is in use."""
        self._end()
        self._cache.close()

    def _end(self) -> None:
        if self._read_ahead is not None:
            self._read_ahead.kill()
        self._sidecar.terminate()
        self._sidecar.wait(_END_S)
        unmount(self.folder)
        self._sidecar.kill()

    def _wait(self, name: str) -> None:
        deadline_s = time.monotonic() + _UP_S
        while not is_mounted(self.folder):
            code = self._sidecar.wait(0)
            if code is not None:
                raise NoMountError(f"{name} ended with {code}: {self._tail()}")
            if time.monotonic() > deadline_s:
                raise NoMountError(f"{name} showed nothing within {_UP_S:.0f} s: {self._tail()}")
            time.sleep(_LOOK_EVERY_S)

    def _tail(self) -> str:
        output = self._log.read_bytes()[-_LAST_BYTES:].decode(errors="replace").strip()
        return output.splitlines()[-1] if output else "it said nothing"


def mount_url(
    url: str, folder: Path, caches: Path, *, cache_bytes: int, identity: str | None = None,
    reads_ahead: bool = True,
) -> Mount:  # fmt: skip
    """Mount a URL as a folder, read only.

    The folder is created if needed; a killed job's mount there is ended. The program and its
    command line are written beside it, as NAME.json; its output, as NAME.log. Later jobs with the
    same URL reuse its cache in `caches`; while another mount uses that, this one has its own, as no
    program shares its cache. `identity` is a hash of the objects' state: rclone, which would take a
    replaced object of the same size for the one it has, reuses only a cache of the same, and none
    where that is None. `reads_ahead` fetches files before the script needs them.

    NoMountError: nothing can be mounted here. UsageError: an invalid URL, or settings of the store.
    OSError: the folder or the cache cannot be used.
    """
    unmount(folder)
    folder.mkdir(parents=True, exist_ok=True)
    location = parse_url(url)
    cache = MountCache(caches, location.url)
    reasons = []
    try:
        for program in choose_programs(
            location, folder, cache.folder, cache_bytes=cache_bytes, version=identity
        ):
            if not program.knows_versions:
                cache.remove_other_versions(identity)
            info = {"url": location.url, "program": program.name, "command": list(program.command)}
            write_text_atomically(
                folder.with_name(f"{folder.name}.json"), json.dumps(info, indent=2) + "\n"
            )
            try:
                ahead_bytes = int(cache_bytes * _AHEAD_SHARE) if reads_ahead else 0
                return Mount(program, folder, cache, ahead_bytes=ahead_bytes)
            except NoMountError as error:
                reasons.append(str(error))
    except BaseException:
        cache.close()
        raise
    cache.close()
    raise NoMountError("; ".join(reasons))


_READERS = 32  # a small object costs one round trip, whatever its size
_PIECE_BYTES = 2**20
_NICENESS = 10


class _ByteBudget:
    """The bytes that may still be read."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._lock = Lock()

    def take(self, count: int) -> bool:
        with self._lock:
            self._left -= count
            return self._left > 0


def main(parent: SidecarParent) -> None:
    """Read the files of a folder."""
    os.nice(_NICENESS)
    folder, budget = Path(parent.request["folder"]), _ByteBudget(parent.request["most_bytes"])
    with ThreadPoolExecutor(_READERS) as readers:
        for _ in readers.map(lambda file: _read(file, budget), _files(folder)):
            if not budget.take(0):
                readers.shutdown(wait=False, cancel_futures=True)
                return


def _files(folder: Path) -> Iterator[Path]:
    for above, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(above) / name for name in sorted(names))


def _read(file: Path, budget: _ByteBudget) -> None:
    with suppress(OSError), file.open("rb", buffering=0) as source:
        while (count := len(source.read(_PIECE_BYTES))) and budget.take(count):
            pass


if __name__ == "__main__":
    run_sidecar(main)
