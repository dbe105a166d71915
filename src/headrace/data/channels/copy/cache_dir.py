"""The folders of the cache of channel copies, their locks, and the space for further copies.

FOLDER/objects/ab/...   complete objects, named by the SHA-256 of their content
FOLDER/known/...        the content of each object of a URL: one file a URL, one line an object
FOLDER/trees/ID/data/   a channel: links to objects; `complete` exists once all of them do
FOLDER/locks/ID         locked shared while a job uses a tree, exclusively to make or remove it
FOLDER/drafts/          unfinished files
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import HeadraceError, NoSpaceError, StorageError, UsageError
from headrace.core.file_lock import SilenceTimer, open_lock_file, try_lock
from headrace.core.units import format_bytes
from headrace.data.storage.urls import cache_folder

UNMODIFIED_NS = 10**18
"""The modification time of every copied file (2001-09-09): another one shows a later write."""
_NAMES = ("objects", "known", "trees", "locks", "drafts")
_RETRY_EVERY_S = 0.1


def default_cache_dir() -> Path:
    """Return the cache folder unless one is named; UsageError: it cannot be made, or not ours."""
    chosen = env.CACHE_DIR.get()
    if chosen:
        return cache_folder(chosen, env.CACHE_DIR.name) / "channels"
    try:
        own = Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"
        with suppress(FileExistsError):
            own.mkdir(mode=0o700)
        status = own.lstat()
    except OSError as error:
        raise UsageError(
            f"Channels cannot be copied to the system's temporary folder: {error}. Name another "
            "folder: HEADRACE_CACHE_DIR."
        ) from None
    # Another user may have created it, to serve false files.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise UsageError(
            f"{own} is not this user's own, so channels cannot be copied there. Name another "
            "folder: HEADRACE_CACHE_DIR."
        )
    return own / "channels"


class CacheDir:
    """The folders of one cache, created if needed; raises UsageError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in _NAMES:
                (folder / name).mkdir(exist_ok=True)
        except OSError as error:
            raise _not_writable(folder, error) from None

    def object_file(self, content: str) -> str:
        """Return the path of the object with this content."""
        return f"{self.folder}/objects/{content[:2]}/{content[2:]}"

    def tree(self, identity: str) -> Path:
        """Return the folder of a tree."""
        return self.folder / "trees" / identity

    def complete(self, identity: str) -> Path:
        """Return the file that marks a tree as complete; its modification time is the last use."""
        return self.tree(identity) / "complete"

    def lock(self, name: str) -> CacheLock:
        """Return a lock, not taken yet."""
        return CacheLock(self.folder / "locks" / name)


def _not_writable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"Copies of channels cannot lie in {folder}: {error.strerror}. Name a folder that may be "
        "written: --cache-dir FOLDER, or HEADRACE_CACHE_DIR."
    )


class CacheLock:
    """A lock on a file; the kernel releases it when its process ends, even by a kill.

    UsageError: the file cannot be made.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self._descriptor = open_lock_file(file)
        except OSError as error:
            raise _not_writable(file.parent, error) from None

    def take(self, *, alone: bool) -> bool:
        """Take the lock, or convert it, without waiting; return whether it is taken."""
        try:
            if not try_lock(self._descriptor, shared=not alone):
                return False
        except OSError as error:
            raise UsageError(
                f"{self._file.parent}: this file system has no locks ({error.strerror}), without "
                "which jobs cannot share a cache. Name another folder: --cache-dir FOLDER."
            ) from None
        if alone:
            holder = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, holder, 0)
        return True

    def holder(self) -> str:
        """Return the process that took the lock exclusively last."""
        try:
            holder = json.loads(os.pread(self._descriptor, 4096, 0))
        except ValueError:  # it is being written
            return "another process"
        here = holder["host"] == socket.gethostname()
        return f"process {holder['pid']}{'' if here else ' on ' + holder['host']}"

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def wait_for_lock(
    lock: CacheLock,
    *,
    first: Callable[[str], None] = lambda _: None,
    alive: Callable[[], float] = lambda: 0.0,
    patience_s: float,
    until: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait for a lock for this process alone; return False where `until` became true first.

    `until` is called every 0.1 s, `first` once with the holder's name, if there is one. `alive`
    returns when the holder last showed activity, in seconds since 1970. StorageError: it showed
    none for longer than `patience_s`.
    """
    has_reported, timer = False, SilenceTimer()
    while not lock.take(alone=True):
        if until():
            return False
        if not has_reported:
            has_reported = True
            first(lock.holder())
        if timer.silent_s(alive()) > patience_s:
            raise StorageError(
                f"{lock.holder()} holds what this job waits for, and has done nothing for "
                f"{patience_s:.0f} s. End it, or name another folder: --cache-dir FOLDER."
            )
        time.sleep(_RETRY_EVERY_S)
    return True


@contextmanager
def disk_errors(path: str | Path) -> Iterator[None]:
    """Raise the disk's errors as StorageErrors that name what was written."""
    try:
        yield
    except HeadraceError:
        raise
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise NoSpaceError(
                f"{path}: no space is left on the disk. Make room, or name another folder: "
                "--cache-dir FOLDER."
            ) from error
        raise StorageError(f"{path} cannot be written: {error.strerror}.") from error


_BLOCK_BYTES = 4096  # most space that a file takes beyond its bytes
_PATIENCE_S = 300.0
_DRAFTS_LAST_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceNeed:
    """The space that a copy needs."""

    channel: str  # as on the command line, for messages
    size_bytes: int  # of the whole channel
    missing_bytes: int  # to fetch
    missing_files: int

    @property
    def disk_bytes(self) -> int:
        """The space on disk of the files to fetch."""
        return self.missing_bytes + self.missing_files * _BLOCK_BYTES


def make_space(folders: CacheDir, need: SpaceNeed, limit_bytes: int | None) -> None:
    """Remove trees that no job uses, the least recently used first, until there is room.

    A limit of None is the disk's. NoSpaceError: removing all of them is not enough.
    """
    if limit_bytes is not None and need.size_bytes > limit_bytes:
        raise NoSpaceError(
            f"{need.channel}: its {format_bytes(need.size_bytes)} are more than the cache may hold "
            f"({format_bytes(limit_bytes)}). Raise --cache-limit, or stream the channel."
        )
    if not need.missing_files:
        return
    lock = folders.lock("room")
    try:
        wait_for_lock(lock, patience_s=_PATIENCE_S)
        _clear_drafts(folders)
        if _shortfall(folders, need, limit_bytes) > 0 or _lacks_inodes(folders, need):
            _evict(folders, need, limit_bytes)
    finally:
        lock.close()


def _evict(folders: CacheDir, need: SpaceNeed, limit_bytes: int | None) -> None:
    sweep(folders)
    for identity in _by_last_use(folders):
        if _shortfall(folders, need, limit_bytes) <= 0 and not _lacks_inodes(folders, need):
            return
        if remove_tree(folders, identity):
            sweep(folders)
    if _lacks_inodes(folders, need):
        raise NoSpaceError(
            f"{need.channel}: {need.missing_files:,} files are to be fetched, and the disk of "
            f"{folders.folder} has no room for so many. Name another folder: --cache-dir FOLDER."
        )
    short = _shortfall(folders, need, limit_bytes)
    if short <= 0:
        return
    free = shutil.disk_usage(folders.folder).free
    if limit_bytes is not None and need.disk_bytes <= free:
        raise NoSpaceError(
            f"{need.channel}: {format_bytes(need.disk_bytes)} are to be fetched, and running jobs "
            f"hold so much of the cache's {format_bytes(limit_bytes)} that {format_bytes(short)} "
            "are missing. Raise --cache-limit, or wait for them."
        )
    raise NoSpaceError(
        f"{need.channel}: {format_bytes(need.disk_bytes)} are to be fetched, and the disk of "
        f"{folders.folder} has {format_bytes(free)} free. Make room, or name another folder: "
        "--cache-dir FOLDER."
    )


def remove_tree(folders: CacheDir, identity: str) -> bool:
    """Remove a tree unless a job uses or makes it; return whether it was removed."""
    lock = folders.lock(identity)
    try:
        if not lock.take(alone=True):
            return False
        folders.complete(identity).unlink(missing_ok=True)
        shutil.rmtree(folders.tree(identity), ignore_errors=True)
        return not folders.tree(identity).exists()
    finally:
        lock.close()


def sweep(folders: CacheDir) -> None:
    """Remove the objects that are in no tree."""
    for entry in _objects(folders):
        with suppress(OSError):
            if entry.stat(follow_symlinks=False).st_nlink == 1:
                os.unlink(entry.path)  # noqa: PTH108


def used_bytes(folders: CacheDir) -> int:
    """Return the disk space of the cache's objects and drafts."""
    total = 0
    for entry in (*_objects(folders), *os.scandir(folders.folder / "drafts")):
        with suppress(OSError):  # removed meanwhile
            total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def _shortfall(folders: CacheDir, need: SpaceNeed, limit_bytes: int | None) -> int:
    short = need.disk_bytes - shutil.disk_usage(folders.folder).free
    if limit_bytes is not None:
        short = max(short, used_bytes(folders) + need.missing_bytes - limit_bytes)
    return short


def _lacks_inodes(folders: CacheDir, need: SpaceNeed) -> bool:
    status = os.statvfs(folders.folder)  # some file systems count no files and report 0
    return status.f_files > 0 and status.f_favail < need.missing_files


def _by_last_use(folders: CacheDir) -> list[str]:
    found = []
    for tree in (folders.folder / "trees").iterdir():
        with suppress(OSError):
            used = folders.complete(tree.name)
            found.append(((used if used.exists() else tree).stat().st_mtime, tree.name))
    return [name for _, name in sorted(found)]


def _objects(folders: CacheDir) -> Iterator[os.DirEntry[str]]:
    for folder in os.scandir(folders.folder / "objects"):
        yield from os.scandir(folder.path)


def _clear_drafts(folders: CacheDir) -> None:
    """Remove drafts of killed processes that nobody has continued for a day."""
    oldest = time.time() - _DRAFTS_LAST_S
    for entry in os.scandir(folders.folder / "drafts"):
        with suppress(OSError):
            if entry.stat().st_mtime < oldest:
                Path(entry.path).unlink()
                print_status(f"removed {entry.path}, half an object of a day ago")
