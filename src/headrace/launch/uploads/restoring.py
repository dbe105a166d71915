"""Fetching what is kept at a URL into a folder, before a script begins."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from headrace.core.errors import CheckpointError, NotFoundError
from headrace.data.storage.atomic import clear_litter, litter_name
from headrace.launch.uploads.cut_short import is_cut_short
from headrace.launch.uploads.digests import digest_of, new_digest
from headrace.launch.uploads.kept import Kept, Union
from headrace.launch.uploads.manifest import KeptFile

_TRIES = 5
_AT_ONCE = 4
_PIECE_BYTES = 8 * 1024 * 1024
_TELL_EVERY_S = 5.0


def restore(kept: Kept, folder: Path, told: Callable[[str], object]) -> Union:
    """Have a folder hold what is kept; files that are there and equal are not fetched again.

    What was kept and changed here since stays where it is newer, and so do files that were never
    kept: nothing is removed.

    Args:
        kept: What is kept.
        folder: Made where it does not exist.
        told: Called with what a user should know.

    Raises:
        CheckpointError: What is kept is broken.
        StorageError: The store does not answer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    clear_litter(folder)
    for left in range(_TRIES, 0, -1):
        union = kept.newest()
        try:
            _fetch_all(kept, union, folder, told)
        except NotFoundError:  # another host removed it: a newer manifest lists something else
            if left == 1:
                raise
        else:
            return union
    raise AssertionError


def _fetch_all(kept: Kept, union: Union, folder: Path, told: Callable[[str], object]) -> None:
    wanted = [file for file in union.files.values() if not _is_there(folder / file.name, file)]
    if not wanted:
        return
    size = sum(file.size_bytes for file in wanted)
    told(f"{len(wanted)} files of checkpoints, {_megabytes(size)}, are fetched: {kept.store.url}")
    progress = _Progress(size, told)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        links = [file for file in wanted if file.link]
        fetched = [
            pool.submit(_fetch, kept, file, folder / file.name, progress.add)
            for file in wanted
            if not file.link
        ]
        try:
            for each in fetched:
                each.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    for link in links:
        _link(folder / link.name, link.link)
    progress.finish()


def _is_there(path: Path, file: KeptFile) -> bool:
    try:
        status = path.lstat()
        if file.link:
            return path.is_symlink() and str(path.readlink()) == file.link
        if path.is_symlink() or not path.is_file():
            return False
        if status.st_mtime_ns > file.mtime_ns:  # of an attempt on this disk, and newer
            return not is_cut_short(path)
        same = (status.st_size, status.st_mtime_ns) == (file.size_bytes, file.mtime_ns)
        return same and digest_of(path) == file.checksum
    except FileNotFoundError:
        return False


def _fetch(kept: Kept, file: KeptFile, path: Path, add: Callable[[int], object]) -> None:
    _make_room(path)
    beside = path.parent / litter_name()
    digest = new_digest()
    try:
        with beside.open("xb") as out:
            for start in range(0, file.size_bytes, _PIECE_BYTES):
                length = min(_PIECE_BYTES, file.size_bytes - start)
                piece = kept.store.get_range(file.stored_as, start, length)
                digest.update(piece)
                out.write(piece)
                add(length)
        if digest.hexdigest() != file.checksum:
            raise CheckpointError(
                f"{kept.store.url}/{file.stored_as}: its checksum is not that of {file.name} in "
                "the manifest. Remove the newest manifest there to take the one before it."
            )
        os.utime(beside, ns=(file.mtime_ns, file.mtime_ns))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _link(path: Path, to: str) -> None:
    _make_room(path)
    with suppress(FileNotFoundError):
        path.unlink()
    path.symlink_to(to)


def _make_room(path: Path) -> None:
    """Have a file's folder be one, and nothing but a file where it shall lie."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}.before-{uuid4().hex[:8]}"))


class _Progress:
    def __init__(self, size_bytes: int, told: Callable[[str], object]) -> None:
        self._size, self._told = size_bytes, told
        self._done = 0
        self._begun_s = self._last_s = time.monotonic()

    def add(self, size_bytes: int) -> None:
        self._done += size_bytes
        now_s = time.monotonic()
        if now_s - self._last_s >= _TELL_EVERY_S:
            self._last_s = now_s
            rate = self._done / (now_s - self._begun_s)
            left_s = (self._size - self._done) / rate
            self._told(
                f"{_megabytes(self._done)} of {_megabytes(self._size)} are here, "
                f"{_megabytes(int(rate))}/s, {left_s:.0f} s are left"
            )

    def finish(self) -> None:
        took_s = time.monotonic() - self._begun_s
        self._told(f"the checkpoints are here: {_megabytes(self._size)} in {took_s:.1f} s")


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
