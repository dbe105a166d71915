"""The sidecar that syncs a host's checkpoints to a URL, and restores them before the start.

With the verb "fetch" it restores the files at the URL and ends; the exit code says how. With "keep"
it runs until the launcher reports the job's end, or was killed; then it uploads the last complete
files. It forks nothing, so it may call object stores itself.

A folder is synced in passes. Complete files are uploaded; then a manifest lists them, together with
the previous versions of files that are being written. So each manifest is a state that the folder
may have had: a file that was written after another is never listed without it.
"""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from headrace.core.console import print_status
from headrace.core.errors import CheckpointError, HeadraceError
from headrace.core.file_lock import SilenceTimer, open_lock_file, try_lock
from headrace.core.process.parent_death import die_with_parent
from headrace.core.process.process_kill import exists
from headrace.core.process.sidecar import SidecarParent, run_sidecar
from headrace.data.storage import declare_leaf
from headrace.data.storage.urls import safe_url
from headrace.jobs.sync.file_groups import (
    CUT_SHORT,
    FileGroup,
    FileState,
    FolderScan,
    group_of,
    ready_groups,
)
from headrace.jobs.sync.remote_copy import (
    FencedError,
    MergedFiles,
    RemoteCopy,
    SyncedFile,
    SyncManifest,
    adopting_manifest,
    file_checksum,
)
from headrace.jobs.sync.restore import restore
from headrace.jobs.sync.sync_messages import (
    SILENCE_S,
    SyncTask,
    exit_at_deadline,
    exit_code_of_task,
    read_job_end,
    safe_host_name,
)

_MAX_UPLOADS = 4
_REMOVALS_WAIT_S = 5.0
"""How long removed files stay listed, in seconds: the whole folder may be about to go."""
_REMOVALS_WAIT_LONGEST_S = 60.0
_MAX_PASS_INTERVAL_S = 5.0
_HELD_BACK = "belongs to a checkpoint with a file whose end is missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPass:
    """The result of one pass."""

    uploaded: int  # files
    waiting: tuple[str, ...]  # names of the groups that were not complete
    problems: Mapping[str, str]  # files and folders that cannot be uploaded as they are, and why


class FolderGoneError(CheckpointError):
    """The folder is not there, maybe for a moment."""


class FolderSync:
    """The sync of one host's folder.

    The job's other hosts may be unknown. `report` is called with messages for the user. `seen_as`
    has other paths by which the script may reach the folder. `since_ns` is when the job began.
    """

    def __init__(
        self, remote: RemoteCopy, folder: Path, host: str, others: Iterable[str] | None,
        report: Callable[[str], object], clock: Callable[[], float] = time.monotonic, *,
        seen_as: Sequence[str] = (), since_ns: int = 0,
    ) -> None:  # fmt: skip
        self._clock = clock
        self._since_ns = since_ns
        self._report = report
        self._is_retention_reported = False
        self._remote = remote
        self._folder = folder
        # As the remote copy has them, whose keys they are compared with.
        self._host = safe_host_name(host)
        self._others = None if others is None else set(map(safe_host_name, others))
        self._owner = uuid4().hex[:12]
        self._scan = FolderScan(folder, report, clock, seen_as)
        self._manifests: list[SyncManifest] = []
        self._synced_states: dict[str, FileState] = {}  # states of uploaded files
        self._files: dict[str, SyncedFile] = {}  # uploaded files, listed by a manifest or not yet
        self._foreign: dict[str, FileState] = {}  # files that other hosts sync
        self._gone_s: dict[str, float] = {}
        self._unmissed: set[str] = set()  # listed when the folder itself was gone
        self._number = 0

    def begin(self) -> None:
        """Take over from the process that synced this host's files before.

        Raises CheckpointError (the remote copy is broken, or another process takes over as well),
        StorageError (the store does not answer).
        """
        merged = self._remote.newest()
        before = merged.manifests.get(self._host)
        others = self._others
        # One host adopts the files of an earlier job's hosts that are not in this job.
        is_first = others is not None and all(self._host < other for other in others)
        if others is None or not is_first:
            others = set(merged.manifests) - {self._host}
        newest = adopting_manifest(
            merged, self._host, self._owner, self._remote.generation(self._host) + 1, others
        )
        self._remote.publish(newest)
        self._manifests = [each for each in (before, newest) if each is not None]
        if is_first:
            self._remote.tidy()
        self._remote.drop_before(self._host, newest.generation - 1)
        left = set(merged.manifests) - others - {self._host}
        for host in left:
            self._remote.disown(host)
        self._note_present_files(merged, others)

    def one_pass(self, *, at_the_end: bool = False, may_remove: bool = True) -> SyncPass:
        """Upload complete files that are not in the remote copy, and publish a manifest if needed.

        At the end what is closed is complete. With `may_remove`, files that are gone from the
        folder need not stay listed. Files that cannot be read are no reason to stop: the others are
        uploaded. Raises FencedError (another process syncs this host's files by now),
        FolderGoneError, StorageError (the store does not answer; the next pass continues where this
        one ended), OSError (the folder cannot be read).
        """
        self._check_folder()
        try:
            present = self._scan.look(at_the_end=at_the_end)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._folder_is_gone() from error
        groups = self._without_foreign_files(present)
        before = self._manifests[-1].files
        ready = ready_groups(groups)
        files: dict[str, SyncedFile] = {}
        uploaded, waiting = 0, set(groups) - ready
        for key in sorted(ready, key=lambda each: groups[each].changed_s):
            fresh = self._uploaded(groups[key])
            if fresh is None:
                waiting.add(key)
                continue
            uploaded += len(fresh)
            self._files |= fresh
            self._synced_states |= groups[key].files
            files |= {name: self._files[name] for name in groups[key].files}
        files |= {name: file for name, file in before.items() if group_of(name) in waiting}
        wait_s = 0.0 if at_the_end else _REMOVALS_WAIT_S if may_remove else float("inf")
        if not any(group.is_complete for group in present.values()):
            wait_s = float("inf")  # an emptied folder is not one in which newer files are
        files |= self._not_yet_removed(before, groups, wait_s)
        if files != before:
            self._publish(files)
        problems: dict[str, str] = {}
        for group in groups.values():
            problems |= group.problems | self._held_back(group)
        return SyncPass(
            uploaded=uploaded, waiting=tuple(sorted(waiting)),
            problems={**self._scan.unreadable, **self._scan.unstorable, **problems},
        )  # fmt: skip

    def _check_folder(self) -> None:
        """Raise FolderGoneError where the folder is gone, and OSError where that is not known."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if stat.S_ISDIR(self._folder.stat().st_mode):
                return
        raise self._folder_is_gone()

    def _folder_is_gone(self) -> FolderGoneError:
        # Where it comes back empty, the files have not been removed by the script.
        self._unmissed |= self._manifests[-1].files.keys()
        return FolderGoneError(
            f"{self._folder} is gone. What was kept of it stays at {self._remote.store.url}."
        )

    def _note_present_files(self, merged: MergedFiles, others: set[str]) -> None:
        """Note which files here equal those of the remote copy; they are not uploaded again."""
        for name, file in merged.files.items():
            try:
                state = self._scan.mark(name)
                if state is None or state.link != file.link:
                    continue
                same = (state.size_bytes, state.mtime_ns) == (file.size_bytes, file.mtime_ns)
                same = bool(file.link) or (
                    same and file_checksum(self._folder / name) == file.checksum
                )
            except OSError:  # it cannot be read: the passes say so
                continue
            if same:
                own = merged.hosts[name] not in others
                (self._synced_states if own else self._foreign)[name] = state
                if own:
                    self._files[name] = file

    def _without_foreign_files(self, groups: Mapping[str, FileGroup]) -> dict[str, FileGroup]:
        """Return the groups without other hosts' files, except those that this host changed."""
        found: dict[str, FileGroup] = {}
        for key, group in groups.items():
            files = {
                name: state
                for name, state in _changed_since(self._foreign, group).items()
                # A link or other rights that this host gives it make it no file of its own.
                if name not in self._foreign
                or replace(state, ctime_ns=0) != replace(self._foreign[name], ctime_ns=0)
            }
            if files or group.is_unreadable:
                found[key] = replace(group, files=files)
        return found

    def _uploaded(self, group: FileGroup) -> dict[str, SyncedFile] | None:
        """Upload the new files of a group; None: it has changed meanwhile, or cannot be read."""
        new = _changed_since(self._synced_states, group)
        if not new:
            return {}
        before = self._manifests[-1].files
        group.problems.clear()
        with ThreadPoolExecutor(_MAX_UPLOADS) as pool:
            uploads: dict[str, Future[SyncedFile]] = {}
            for name, state in new.items():
                self._number += 1
                stored_as = self._remote.object_name(name, self._host, self._owner, self._number)
                uploads[name] = pool.submit(self._upload, name, state, before.get(name), stored_as)
        errors = {name: each.exception() for name, each in uploads.items()}
        failed = {name: error for name, error in errors.items() if error is not None}
        fresh = {name: each.result() for name, each in uploads.items() if name not in failed}
        changed = any(self._has_changed(name, state) for name, state in group.files.items())
        if not changed and not failed:
            return fresh
        for name, file in fresh.items():
            # One that was touched alone is in the manifests by the object that it had before.
            is_new = name not in before or file.stored_as != before[name].stored_as
            if file.stored_as and is_new:
                self._remote.store.delete(file.stored_as)
        for name, error in {} if changed else failed.items():
            if isinstance(error, HeadraceError) or not isinstance(error, OSError):
                raise error
            group.problems[name] = self._scan.note_unreadable(name, error)
        return None

    def _held_back(self, group: FileGroup) -> dict[str, str]:
        """Return what this job wrote beside a file that is cut short: no kill left it there."""
        if CUT_SHORT not in group.problems.values():
            return {}
        return {
            name: _HELD_BACK
            for name, state in _changed_since(self._synced_states, group).items()
            if name not in group.problems and state.mtime_ns > self._since_ns
        }

    def _has_changed(self, name: str, state: FileState) -> bool:
        with suppress(OSError):
            return self._scan.mark(name) != state
        return True

    def _upload(
        self, name: str, state: FileState, before: SyncedFile | None, object_name: str
    ) -> SyncedFile:
        file = SyncedFile(
            name=name, size_bytes=0, checksum="", mtime_ns=time.time_ns(), stored_as="",
            link=state.link,
        )  # fmt: skip
        if file.link:
            return file
        path, size_bytes = self._folder / name, state.size_bytes
        checksum = file_checksum(path)
        if before and (before.checksum, before.size_bytes) == (checksum, size_bytes):
            object_name = before.stored_as  # touched, or rewritten with the same bytes
        else:
            self._remote.store.put(object_name, path)
        return replace(
            file, size_bytes=size_bytes, checksum=checksum, mtime_ns=state.mtime_ns,
            stored_as=object_name,
        )  # fmt: skip

    def _not_yet_removed(
        self, before: Mapping[str, SyncedFile], groups: Mapping[str, FileGroup], wait_s: float
    ) -> dict[str, SyncedFile]:
        """Return removed files that stay listed for a while, as something may replace them.

        Those of an unmounted disk stay as long as it is: nobody removed them.
        """
        now_s = self._clock()
        gone = {name for name in before if group_of(name) not in groups}
        hidden = {name for name in gone if self._scan.hides(name)}
        stay = hidden | (gone & self._unmissed)
        unmounted = {name for name in gone - stay if self._is_unmounted(name)}
        self._gone_s = {
            name: now_s if name in hidden else self._gone_s.get(name, now_s) for name in gone
        }
        if wait_s and any(not group.is_complete for group in groups.values()):
            wait_s = max(wait_s, _REMOVALS_WAIT_LONGEST_S)
        if unmounted or (gone and wait_s == float("inf") and not groups):
            waited_s = max((now_s - since_s for since_s in self._gone_s.values()), default=0.0)
            self._report_retained(len(unmounted or gone), waited_s)
        return {
            name: before[name]
            for name, since_s in self._gone_s.items()
            if now_s - since_s < wait_s or name in unmounted | stay
        }

    def _is_unmounted(self, name: str) -> bool:
        """Whether what is left of a removed file's folders is on another file system than it was.

        Then the disk with the file was unmounted from one of them.
        """
        known = self._synced_states.get(name)
        path = (self._folder / name).parent
        while not path.is_dir() and path != self._folder:
            path = path.parent
        return known is not None and path.stat().st_dev != known.device

    def _report_retained(self, files: int, waited_s: float) -> None:
        if files and waited_s >= _REMOVALS_WAIT_LONGEST_S and not self._is_retention_reported:
            self._is_retention_reported = True
            self._report(
                f"{self._folder}: {files} files are not there any more, and nothing is in their "
                f"place. They stay at {self._remote.store.url}: a disk may have been unmounted."
            )

    def _publish(self, files: Mapping[str, SyncedFile]) -> None:
        newest = SyncManifest(
            host=self._host, generation=self._manifests[-1].generation + 1, owner=self._owner,
            saved_s=time.time(), files=dict(files),
        )  # fmt: skip
        # After a lost answer, this may be a manifest that this process published before.
        self._manifests.append(self._remote.publish(newest))
        self._synced_states = {
            name: state for name, state in self._synced_states.items() if name in files
        }
        self._files = {name: file for name, file in self._files.items() if name in files}
        self._remote.prune(self._manifests, self._manifests[-1])
        self._manifests = self._manifests[-2:]


def _changed_since(before: Mapping[str, FileState], group: FileGroup) -> dict[str, FileState]:
    return {name: state for name, state in group.files.items() if before.get(name) != state}


_STORE_RETRY_S = 60.0
_FOLDER_RETRY_S = 2.0  # looking for a folder costs nothing


def sync_until(
    sync: FolderSync, is_over: Callable[[float], bool], look_every_s: float,
    report: Callable[[str], object],
) -> None:  # fmt: skip
    """Make passes until `is_over`, which also waits, returns True; failures are retried.

    Raises FencedError (another process syncs this host's files by now).
    """
    failing = False
    wait_s = look_every_s
    while not is_over(wait_s):
        start_s = time.monotonic()
        try:
            done = sync.one_pass()
        except FencedError:
            raise
        except (HeadraceError, OSError) as error:
            longest_s = _FOLDER_RETRY_S if isinstance(error, FolderGoneError) else _STORE_RETRY_S
            wait_s = min(longest_s, max(wait_s * 2, 1.0))
            if not failing:
                report(f"{error} It is tried again until it succeeds.")
            failing = True
        else:
            if failing:
                report("checkpoints are kept again")
            # A folder of very many files is scanned less often, to use a tenth of a core.
            took_s = 0.0 if done.uploaded else time.monotonic() - start_s
            failing, wait_s = False, min(_MAX_PASS_INTERVAL_S, max(look_every_s, 9 * took_s))


PASS_EVERY_S = 0.25
_NICE = 10
_TAKEOVER_TRIES = 10
_FOLDER_RETURNS_S = 5.0  # longest wait for a folder that is gone when the job ends
_NAMED = 8  # of more files, the number is printed
_SAY_EVERY_S = 1.0
_EARLIER_JOB_S = 900.0
"""For a pass that uploads large files, and the last one, for which it has a minute."""


def main(parent: SidecarParent) -> int:
    """Do the task and return the exit code."""
    task = SyncTask(**parent.request)
    declare_leaf()

    def report(text: str) -> None:
        print_status(f"{task.host}: {text}")

    work = _fetch if task.verb == "fetch" else _sync
    return exit_code_of_task(lambda: work(task, parent, report), report, task.folder)


def _fetch(task: SyncTask, parent: SidecarParent, report: Callable[[str], object]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # ctrl-C ends it without a traceback
    die_with_parent(parent.pid)
    remote = RemoteCopy(task.url, report)
    remote.check(task.host)
    lock = f"{task.lock}-fetch"
    goes_on = _Progress(parent, Path(lock))
    with _locked_for_fetch(lock, goes_on):
        _wait_for_earlier_job(task.lock, goes_on)
        restore(remote, Path(task.folder), report, goes_on)


def _sync(task: SyncTask, parent: SidecarParent, report: Callable[[str], object]) -> None:
    os.nice(_NICE)
    with _locked_exclusively(task.lock, parent) as is_alone:
        if not is_alone:
            return  # another process of this machine synced the folder all the time
        Path(task.lock).write_text(str(parent.pid))
        remote = RemoteCopy(task.url, report)
        sync = FolderSync(
            remote, Path(task.folder), task.host, task.others, report, seen_as=task.seen_as,
            since_ns=task.since_ns,
        )  # fmt: skip
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
        except (HeadraceError, OSError) as error:
            if parent.wait(1.0):
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
        done = _last_pass(sync, at_the_end=clean, may_remove=is_ended_by_launcher)
    waiting = [name for name in done.waiting if name.rstrip("/") not in done.problems]
    reasons = [f"{name} {why}" for name, why in sorted(done.problems.items())]
    if waiting:
        report(f"not uploaded, incomplete when the job ended: {_first_few(waiting)}")
    if reasons:
        text = f"not uploaded to {safe_url(task.url)}: {_first_few(reasons)}"
        if clean and set(done.problems.values()) != {CUT_SHORT}:
            raise CheckpointError(text)
        report(text)


def _last_pass(sync: FolderSync, *, at_the_end: bool, may_remove: bool) -> SyncPass:
    """Make the last pass; a folder that is gone may come back within some seconds."""
    deadline_s = time.monotonic() + _FOLDER_RETURNS_S
    while True:
        try:
            return sync.one_pass(at_the_end=at_the_end, may_remove=may_remove)
        except FolderGoneError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(PASS_EVERY_S)


def _first_few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


class _Progress:
    """Says now and then that this process goes on: to its launcher, and by its lock's time."""

    def __init__(self, parent: SidecarParent, lock: Path) -> None:
        self._parent, self._lock = parent, lock
        self._said_s = 0.0
        self._mutex = threading.Lock()

    def __call__(self) -> None:
        """Note that it goes on; any thread may."""
        with self._mutex:
            now_s = time.monotonic()
            if now_s - self._said_s < _SAY_EVERY_S:
                return
            self._said_s = now_s
        self.to_launcher()
        with suppress(OSError):
            os.utime(self._lock)

    def to_launcher(self) -> None:
        """Say it to the launcher alone: another process has the lock, and goes on."""
        self._parent.send({"goes_on": True})


@contextmanager
def _locked_exclusively(lock: str, parent: SidecarParent) -> Iterator[bool]:
    """Wait for the lock and hold it; yields False where the job ended before."""
    descriptor = _opened_lock(lock)
    try:
        while not try_lock(descriptor, required=False):
            if parent.wait(PASS_EVERY_S):
                yield False
                return
        yield True
    finally:
        os.close(descriptor)


@contextmanager
def _locked_for_fetch(lock: str, progress: _Progress) -> Iterator[None]:
    """Hold the lock of a fetch, once no other process of this machine fetches into the folder.

    Raises CheckpointError (that process has not gone on for `SILENCE_S`).
    """
    descriptor = _opened_lock(lock)
    try:
        active_s, timer = 0.0, SilenceTimer()
        while not try_lock(descriptor, required=False):
            if (changed_s := os.fstat(descriptor).st_mtime) != active_s:
                active_s = changed_s
                progress.to_launcher()
            if timer.silent_s(active_s) > SILENCE_S:
                raise CheckpointError(
                    f"Another process fetches these checkpoints, and has not gone on for "
                    f"{SILENCE_S:.0f} s. End it: fuser {lock} names it."
                )
            time.sleep(PASS_EVERY_S)
        yield
    finally:
        os.close(descriptor)


def _opened_lock(lock: str) -> int:
    Path(lock).parent.mkdir(parents=True, exist_ok=True)
    return open_lock_file(lock)


def _wait_for_earlier_job(lock: str, goes_on: Callable[[], object]) -> None:
    """Wait while the sync process of a killed job uploads that job's last files.

    Raises CheckpointError (it has not ended in time).
    """
    deadline = time.monotonic() + _EARLIER_JOB_S
    with suppress(FileNotFoundError), Path(lock).open("rb+") as file:
        while not try_lock(file.fileno(), required=False):
            file.seek(0)
            parent = file.read().decode()
            if not parent or exists(int(parent)):
                return  # of this job: emulated hosts share the folder
            if time.monotonic() > deadline:
                raise CheckpointError(
                    "The process that uploads the last checkpoints of this run's earlier job has "
                    f"not ended in {_EARLIER_JOB_S:.0f} s. End it: fuser {lock} names it."
                )
            goes_on()
            time.sleep(PASS_EVERY_S)


if __name__ == "__main__":
    run_sidecar(main, dies_by=None)
