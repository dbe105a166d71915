"""The restoring of a folder from its remote copy, which writes nothing outside of that folder.

Names come from a store that others may write to, and the folder may hold links of a script's. So
each folder on the way to a file is opened by itself, and never through a link.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from headrace.core.errors import CheckpointError, NotFoundError
from headrace.core.files import create_temporary, remove_abandoned_files, write_all
from headrace.data.storage.repeated_reads import read_sound
from headrace.data.storage.store import split_span
from headrace.jobs.sync.file_groups import is_truncated
from headrace.jobs.sync.remote_copy import (
    MergedFiles,
    RemoteCopy,
    SyncedFile,
    file_checksum,
    new_checksum,
)
from headrace.jobs.sync.sync_messages import SILENCE_S

_RESTORE_TRIES = 5
_MAX_FETCHES = 4
_PIECE_BYTES = 8 * 1024 * 1024
_STATUS_EVERY_S = 5.0
_ABANDONED_AFTER_S = SILENCE_S  # other hosts may not see the locks of a shared disk
_NO_FOLDER = {errno.ENOTDIR, errno.ELOOP}  # a file, or a link
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def restore(
    remote: RemoteCopy,
    folder: Path,
    report: Callable[[str], object],
    goes_on: Callable[[], object] = lambda: None,
) -> MergedFiles:
    """Restore a folder from its remote copy; files that are present and equal are not fetched.

    A file that was changed here stays where it is newer, and so do files that were never synced:
    nothing is deleted. `goes_on` is called, from any thread, with each piece that has come.

    Raises CheckpointError (the remote copy is broken), StorageError (the store does not answer).
    """
    folder.mkdir(parents=True, exist_ok=True)
    _remove_drafts(folder, goes_on)
    for left in reversed(range(_RESTORE_TRIES)):
        merged = remote.newest()
        try:
            _fetch_all(remote, merged, _RestoredFolder(folder, report, goes_on), report, goes_on)
            break
        except NotFoundError:  # another host deleted it: a newer manifest lists another object
            if left == 0:
                raise
    return merged


def _remove_drafts(folder: Path, goes_on: Callable[[], object]) -> None:
    """Remove what killed restores have left, which is as large as a checkpoint.

    No recursion, as folders may be deep.
    """
    folders = [folder]
    while folders:
        goes_on()
        place = folders.pop()
        remove_abandoned_files(place, older_than_s=_ABANDONED_AFTER_S)
        with suppress(OSError), os.scandir(place) as entries:
            folders += [Path(each.path) for each in entries if each.is_dir(follow_symlinks=False)]


def _fetch_all(
    remote: RemoteCopy, merged: MergedFiles, folder: _RestoredFolder,
    report: Callable[[str], object], goes_on: Callable[[], object],
) -> None:  # fmt: skip
    wanted = [file for file in merged.files.values() if not folder.has(file)]
    if not wanted:
        return
    size = sum(file.size_bytes for file in wanted)
    report(
        f"{len(wanted)} files of checkpoints, {_megabytes(size)}, are fetched: {remote.store.url}"
    )
    progress = _RestoreProgress(size, report)

    def add(size_bytes: int) -> None:
        progress.add(size_bytes)
        goes_on()

    def fetch(file: SyncedFile) -> None:
        read_sound(lambda: _fetch_file(remote, file, folder, add), CheckpointError)

    with ThreadPoolExecutor(_MAX_FETCHES) as pool:
        fetched = [pool.submit(fetch, file) for file in wanted if not file.link]
        try:
            for each in fetched:
                each.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    folder.add_links([file for file in wanted if file.link])
    progress.finish()


def _fetch_file(
    remote: RemoteCopy, file: SyncedFile, folder: _RestoredFolder, add: Callable[[int], object]
) -> None:
    digest = new_checksum()
    with folder.replacing(file) as descriptor:
        for start, length in split_span(0, file.size_bytes, _PIECE_BYTES):
            piece = remote.store.get_range(file.stored_as, start, length)
            digest.update(piece)
            write_all(descriptor, memoryview(piece))
            add(length)
        if digest.hexdigest() != file.checksum:
            add(-file.size_bytes)
            raise CheckpointError(
                f"{remote.store.url}/{file.stored_as}: its checksum is not that of {file.name} in "
                "the manifest. Remove the newest manifest there to take the one before it."
            )


class _RestoredFolder:
    """A folder into which files are restored, by names relative to it; links are not followed.

    A link, a file or a folder that is in the way of a name is renamed.
    """

    def __init__(
        self, folder: Path, report: Callable[[str], object], goes_on: Callable[[], object]
    ) -> None:
        self._folder, self._report, self._goes_on = folder, report, goes_on
        self._making = threading.Lock()  # of two threads one would rename the other's new folder

    def has(self, file: SyncedFile) -> bool:
        """Whether a file is there as it was synced, or newer."""
        path = self._folder / file.name
        self._goes_on()
        try:
            with self._opened(file.name, make=False) as above:
                status = os.stat(path.name, dir_fd=above, follow_symlinks=False)
                if stat.S_ISLNK(status.st_mode):
                    return bool(file.link) and os.readlink(path.name, dir_fd=above) == file.link
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in _NO_FOLDER:
                return False
            raise
        if file.link or not stat.S_ISREG(status.st_mode):
            return False
        if status.st_mtime_ns > file.mtime_ns:  # from a later attempt on this disk
            return not is_truncated(path)
        same = (status.st_size, status.st_mtime_ns) == (file.size_bytes, file.mtime_ns)
        return same and file_checksum(path, self._goes_on) == file.checksum

    @contextmanager
    def replacing(self, file: SyncedFile) -> Iterator[int]:
        """Yield the descriptor of a new file, which takes the name where the block ends well."""
        name = Path(file.name).name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._opened(file.name, make=True) as above:
            # Another host's restore into the same folder leaves a locked draft alone.
            draft, descriptor = create_temporary(
                lambda new: os.open(new, flags, 0o666, dir_fd=above)
            )
            try:
                yield descriptor
                os.utime(descriptor, ns=(file.mtime_ns, file.mtime_ns))
                self._clear_folder(above, file.name)
                os.replace(draft, name, src_dir_fd=above, dst_dir_fd=above)
            finally:
                os.close(descriptor)
                with suppress(FileNotFoundError):
                    os.unlink(draft, dir_fd=above)

    def add_links(self, links: Sequence[SyncedFile]) -> None:
        """Make links; those that lead out of the folder by way of others are reported instead."""
        for link in links:
            with self._opened(link.name, make=True) as above:
                name = Path(link.name).name
                self._clear_folder(above, link.name)
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=above)
                os.symlink(link.link, name, dir_fd=above)
        inside = self._folder.resolve()
        for link in links:
            # Not `resolve`, which refuses a link that leads to itself.
            if Path(os.path.realpath(self._folder / link.name)).is_relative_to(inside):
                continue
            with suppress(OSError), self._opened(link.name, make=False) as above:
                os.unlink(Path(link.name).name, dir_fd=above)
            self._report(
                f"{self._folder / link.name}: this link leads out of the folder, by way of other "
                "links, so it is not restored"
            )

    @contextmanager
    def _opened(self, name: str, *, make: bool) -> Iterator[int]:
        """Yield the descriptor of the folder that a file is in."""
        above = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            parts = name.split("/")[:-1]
            for depth, part in enumerate(parts, start=1):
                below = self._open_folder(above, "/".join(parts[:depth]), part, make=make)
                os.close(above)
                above = below
            yield above
        finally:
            os.close(above)

    def _open_folder(self, above: int, name: str, part: str, *, make: bool) -> int:
        if not make:
            return os.open(part, _FOLDER_FLAGS, dir_fd=above)
        with self._making:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=above)
            try:
                return os.open(part, _FOLDER_FLAGS, dir_fd=above)
            except OSError as error:
                if error.errno not in _NO_FOLDER:
                    raise
            self._rename_obstacle(above, name)
            os.mkdir(part, dir_fd=above)
            return os.open(part, _FOLDER_FLAGS, dir_fd=above)

    def _clear_folder(self, above: int, name: str) -> None:
        """Move away a folder of the file's own name."""
        with suppress(FileNotFoundError):
            status = os.stat(Path(name).name, dir_fd=above, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                self._rename_obstacle(above, name)

    def _rename_obstacle(self, above: int, name: str) -> None:
        last = Path(name).name
        moved = f"{last}.before-{uuid4().hex[:8]}"
        os.rename(last, moved, src_dir_fd=above, dst_dir_fd=above)
        self._report(f"{self._folder / name} was in the way of checkpoints; it is {moved} now")


class _RestoreProgress:
    def __init__(self, size_bytes: int, report: Callable[[str], object]) -> None:
        self._size, self._report = size_bytes, report
        self._done = 0
        self._start_s = self._last_s = time.monotonic()

    def add(self, size_bytes: int) -> None:
        """Count bytes that have arrived; fewer than none are those of a damaged file."""
        self._done += size_bytes
        now_s = time.monotonic()
        if size_bytes > 0 and now_s - self._last_s >= _STATUS_EVERY_S:
            self._last_s = now_s
            rate = self._done / (now_s - self._start_s)
            left_s = (self._size - self._done) / rate
            self._report(
                f"{_megabytes(self._done)} of {_megabytes(self._size)} are here, "
                f"{_megabytes(int(rate))}/s, {left_s:.0f} s are left"
            )

    def finish(self) -> None:
        took_s = time.monotonic() - self._start_s
        self._report(f"the checkpoints are here: {_megabytes(self._size)} in {took_s:.1f} s")


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
