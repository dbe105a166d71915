"""The space for a copy on the disk and within the cache's limit, by evicting unused trees."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.core.console import print_status
from headrace.core.errors import NoSpaceError
from headrace.core.units import format_bytes
from headrace.data.channels.copy.cache_dir import CacheDir, wait_for_lock

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

    The cache has a limit, None for the disk's.

    Raises NoSpaceError (removing all of them is not enough).
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
