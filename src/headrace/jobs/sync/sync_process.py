"""The sidecar that syncs a host's checkpoints to a URL, and restores them before the start.

With the verb "fetch" it restores the files at the URL and ends; the exit code says how. With "keep"
it runs until the launcher reports the job's end, or was killed; then it uploads the last complete
files. It forks nothing, so it may call object stores itself.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from headrace.core.console import print_status
from headrace.core.errors import CheckpointError, HeadraceError, NotFoundError
from headrace.core.file_lock import open_lock_file, try_lock
from headrace.core.files import remove_abandoned_files, temporary_name
from headrace.core.process.parent_death import die_with_parent
from headrace.core.process.sidecar import SidecarParent, run_sidecar
from headrace.data.storage import declare_leaf
from headrace.data.storage.store import split_span
from headrace.jobs.sync.file_groups import is_truncated
from headrace.jobs.sync.folder_sync import FolderSync, sync_until
from headrace.jobs.sync.manifest import SyncedFile, file_checksum, new_checksum
from headrace.jobs.sync.remote_copy import FencedError, MergedFiles, RemoteCopy
from headrace.jobs.sync.sync_messages import (
    SyncTask,
    exit_at_deadline,
    exit_code_of_task,
    read_job_end,
)

_RESTORE_TRIES = 5
_MAX_FETCHES = 4
_PIECE_BYTES = 8 * 1024 * 1024
_STATUS_EVERY_S = 5.0


def restore(remote: RemoteCopy, folder: Path, report: Callable[[str], object]) -> MergedFiles:
    """Restore a folder from its remote copy; files that are present and equal are not fetched.

    A file that was changed here stays where it is newer, and so do files that were never synced:
    nothing is deleted.

    Raises CheckpointError (the remote copy is broken), StorageError (the store does not answer).
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_abandoned_files(folder)
    for left in reversed(range(_RESTORE_TRIES)):
        merged = remote.newest()
        try:
            _fetch_all(remote, merged, folder, report)
            break
        except NotFoundError:  # another host deleted it: a newer manifest lists another object
            if left == 0:
                raise
    return merged


def _fetch_all(
    remote: RemoteCopy, merged: MergedFiles, folder: Path, report: Callable[[str], object]
) -> None:
    wanted = [file for file in merged.files.values() if not _is_present(folder / file.name, file)]
    if not wanted:
        return
    size = sum(file.size_bytes for file in wanted)
    report(
        f"{len(wanted)} files of checkpoints, {_megabytes(size)}, are fetched: {remote.store.url}"
    )
    progress = _RestoreProgress(size, report)
    with ThreadPoolExecutor(_MAX_FETCHES) as pool:
        links = [file for file in wanted if file.link]
        fetched = [
            pool.submit(_fetch_file, remote, file, folder / file.name, progress.add)
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
        _symlink(folder / link.name, link.link)
    progress.finish()


def _is_present(path: Path, file: SyncedFile) -> bool:
    try:
        status = path.lstat()
        if file.link:
            return path.is_symlink() and str(path.readlink()) == file.link
        if path.is_symlink() or not path.is_file():
            return False
        if status.st_mtime_ns > file.mtime_ns:  # from a later attempt on this disk
            return not is_truncated(path)
        same = (status.st_size, status.st_mtime_ns) == (file.size_bytes, file.mtime_ns)
        return same and file_checksum(path) == file.checksum
    except FileNotFoundError:
        return False


def _fetch_file(
    remote: RemoteCopy, file: SyncedFile, path: Path, add: Callable[[int], object]
) -> None:
    _clear_path(path)
    draft = path.parent / temporary_name()
    digest = new_checksum()
    try:
        with draft.open("xb") as out:
            for start, length in split_span(0, file.size_bytes, _PIECE_BYTES):
                piece = remote.store.get_range(file.stored_as, start, length)
                digest.update(piece)
                out.write(piece)
                add(length)
        if digest.hexdigest() != file.checksum:
            raise CheckpointError(
                f"{remote.store.url}/{file.stored_as}: its checksum is not that of {file.name} in "
                "the manifest. Remove the newest manifest there to take the one before it."
            )
        os.utime(draft, ns=(file.mtime_ns, file.mtime_ns))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _symlink(path: Path, to: str) -> None:
    _clear_path(path)
    with suppress(FileNotFoundError):
        path.unlink()
    path.symlink_to(to)


def _clear_path(path: Path) -> None:
    """Create a file's folder, and move away a folder of the file's own name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}.before-{uuid4().hex[:8]}"))


class _RestoreProgress:
    def __init__(self, size_bytes: int, report: Callable[[str], object]) -> None:
        self._size, self._report = size_bytes, report
        self._done = 0
        self._start_s = self._last_s = time.monotonic()

    def add(self, size_bytes: int) -> None:
        self._done += size_bytes
        now_s = time.monotonic()
        if now_s - self._last_s >= _STATUS_EVERY_S:
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


PASS_EVERY_S = 0.25
_NICE = 10
_TAKEOVER_TRIES = 10


def main(parent: SidecarParent) -> int:
    """Do the task and return the exit code."""
    task = SyncTask(**parent.request)
    declare_leaf()

    def report(text: str) -> None:
        print_status(f"headrace: {task.host}: {text}\n")

    work = _fetch if task.verb == "fetch" else _sync
    return exit_code_of_task(lambda: work(task, parent, report), report, task.folder)


def _fetch(task: SyncTask, parent: SidecarParent, report: Callable[[str], object]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # ctrl-C ends it without a traceback
    die_with_parent(parent.pid)
    remote = RemoteCopy(task.url, report)
    remote.check(task.host)
    with _locked_exclusively(f"{task.lock}-fetch"):
        _wait_for_earlier_job(task.lock)
        restore(remote, Path(task.folder), report)


def _sync(task: SyncTask, parent: SidecarParent, report: Callable[[str], object]) -> None:
    os.nice(_NICE)
    with _locked_exclusively(task.lock, parent) as is_alone:
        if not is_alone:
            return  # another process of this machine synced the folder all the time
        Path(task.lock).write_text(str(parent.pid))
        remote = RemoteCopy(task.url, report)
        sync = FolderSync(remote, Path(task.folder), task.host, task.others, report)
        _take_over(sync, parent, report)
        sync_until(sync, parent.wait, PASS_EVERY_S, report)
        _finish(sync, parent, task, report)


def _take_over(sync: FolderSync, parent: SidecarParent, report: Callable[[str], object]) -> None:
    is_reported, tries = False, _TAKEOVER_TRIES
    while True:
        try:
            return sync.begin()
        except FencedError:  # the process that synced these files before was about to end
            if (tries := tries - 1) == 0:
                raise
        except HeadraceError as error:
            if not isinstance(error, OSError) or parent.wait(1.0):
                raise
            if not is_reported:
                report(f"{error} It is tried again until it succeeds.")
            is_reported = True


def _finish(
    sync: FolderSync, parent: SidecarParent, task: SyncTask, report: Callable[[str], object]
) -> None:
    """Upload the last files, within the launcher's deadline."""
    is_ended_by_launcher, clean, deadline_s = read_job_end(parent)
    late = (
        f"the last files of {task.folder} were not uploaded within {deadline_s:.0f} s; they are "
        "still there."
    )
    with exit_at_deadline(deadline_s, report, late, "them"):
        done = sync.one_pass(at_the_end=clean, may_remove=is_ended_by_launcher)
    if done.waiting:
        more = f" and {len(done.waiting) - 8} more" if len(done.waiting) > 8 else ""
        report(
            f"not uploaded, being written when the job ended: {', '.join(done.waiting[:8])}{more}"
        )


@contextmanager
def _locked_exclusively(lock: str, parent: SidecarParent | None = None) -> Iterator[bool]:
    """Wait for the lock and hold it; yields False where the job ended before."""
    Path(lock).parent.mkdir(parents=True, exist_ok=True)
    descriptor = open_lock_file(lock)
    try:
        while not try_lock(descriptor, required=False):
            if parent is None:
                time.sleep(PASS_EVERY_S)
            elif parent.wait(PASS_EVERY_S):
                yield False
                return
        yield True
    finally:
        os.close(descriptor)


def _wait_for_earlier_job(lock: str) -> None:
    """Wait while the sync process of a killed job uploads that job's last files."""
    with suppress(FileNotFoundError), Path(lock).open("rb+") as file:
        while not try_lock(file.fileno(), required=False):
            file.seek(0)
            parent = file.read().decode()
            if not parent or Path(f"/proc/{parent}").exists():
                return  # of this job: emulated hosts share the folder
            time.sleep(PASS_EVERY_S)


if __name__ == "__main__":
    run_sidecar(main, dies_by=None)
