"""The sidecar that uploads a job's outputs, in the layouts of SageMaker and Vertex AI.

For a job it takes the lease on the output path, reports that, and uploads files that are synced
while the job runs; once the launcher reports the job's end, it uploads everything. On hosts that do
not share the launcher's machine it uploads a part, without a lease.

The lease is an object with an owner and a time, made by the store's create-if-absent, which only
one of two writers wins. It is renewed in a thread, as one file may take longer than it lasts. A
lease that is not renewed expires; the lease of a process that has ended on this machine, in this
process's pid namespace, expires at once. Clocks of machines may differ: what has expired, or lasts
too long, by another machine's clock is watched for a while, whether it is renewed. The next owner
creates the object of the next number.

SageMaker: `<job>/output/model.tar.gz`, `output.tar.gz`, `failure` and `intermediate/`, of all hosts
together. Vertex AI: `model/`, `checkpoints/` and `logs/`, file by file.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from uuid import uuid4

from headrace.core.boot_id import boot_id, pid_namespace
from headrace.core.console import print_status
from headrace.core.errors import CheckpointError, NotFoundError, StorageError, UsageError
from headrace.core.files import open_regular_file
from headrace.core.process.process_kill import exists
from headrace.core.process.sidecar import SidecarParent, run_sidecar
from headrace.data.storage import Store, declare_leaf, open_store
from headrace.data.storage.store import split_span
from headrace.data.storage.urls import check_path
from headrace.jobs.sync.file_groups import (
    CUT_SHORT,
    FileState,
    FolderScan,
    file_state,
    is_truncated,
)
from headrace.jobs.sync.output_files import find_output_files, is_there
from headrace.jobs.sync.sync_messages import (
    FENCED_EXIT_CODE,
    OutputTask,
    exit_at_deadline,
    exit_code_of_task,
    read_job_end,
)

LEASE_S = 60.0
_RENEWALS = 4  # while a lease lasts
_UNREADABLE_S = 5.0
"""How long a lease may be being written, in seconds, where the store shows half of it."""
_CLOCKS_DIFFER_S = 86_400.0
"""By how much clocks of machines may differ: time zones, at most, and not days."""
_TAKE_TRIES = 100
_LEASE_FOLDER = "headrace-lease"


class Lease:
    """A lease on everything below a store's URL, which a job takes; it lasts some seconds."""

    def __init__(self, store: Store, job: str, *, lasts_s: float = LEASE_S) -> None:
        self._store = store
        self._job = job
        self._lasts_s = lasts_s
        self._owner = uuid4().hex
        self._number = 0

    def take(self) -> None:
        """Take the lease.

        Raises UsageError (another job holds it), StorageError (the store does not answer).
        """
        for _ in range(_TAKE_TRIES):
            numbers = self._numbers()
            newest = max(numbers, default=0)
            self._refuse_if_leased(newest)
            if self._store.create(_path(newest + 1), self._record()) or self._is_own(newest + 1):
                break
        else:
            raise UsageError(
                f"--output-path {self._store.url}: other jobs took it each of {_TAKE_TRIES} times. "
                "Give this job a path of its own."
            )
        self._number = newest + 1
        for number in numbers:
            self._store.delete(_path(number))

    @contextmanager
    def renewed(self, lost: Callable[[CheckpointError], object]) -> Iterator[None]:
        """Renew the lease during the block; `lost` is called where another job has taken over.

        Both are done in a thread. Where the store does not answer, it is tried again.
        """
        is_over = threading.Event()

        def renew() -> None:
            while not is_over.wait(self._lasts_s / _RENEWALS):
                try:
                    self._renew()
                except CheckpointError as error:
                    lost(error)
                    return
                except OSError:  # a StorageError is one; the uploads tell of it
                    continue

        thread = threading.Thread(target=renew, name="headrace-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join(self._lasts_s)

    def _renew(self) -> None:
        """Renew the lease.

        Raises CheckpointError (another job has taken over), StorageError (the store does not
        answer).
        """
        if max(self._numbers(), default=0) != self._number or not self._is_own(self._number):
            self._number = 0
            raise CheckpointError(
                f"{self._store.url}: another job has taken over this output path, as nothing was "
                f"heard of this one for {self._lasts_s:.0f} s. Nothing more is uploaded from here."
            )
        self._store.put(_path(self._number), self._record())

    def release(self) -> None:
        """Give up the lease."""
        if self._number and self._is_own(self._number):
            self._store.delete(_path(self._number))

    def _numbers(self) -> list[int]:
        names = [info.path.rpartition("/")[2] for info in self._store.list(_LEASE_FOLDER)]
        return [int(name) for name in names if name.isdecimal()]

    def _refuse_if_leased(self, number: int) -> None:
        lease = self._read_whole(number) if number else None
        if lease is None or _is_process_gone(lease):
            return
        left_s = float(lease["until_s"]) - time.time()
        is_plausible = 0 < left_s <= self._lasts_s or left_s < -_CLOCKS_DIFFER_S
        if not is_plausible and lease["boot"] != boot_id():
            left_s = self._lasts_s if self._is_renewed(number, lease) else 0.0
        if left_s > 0:
            raise UsageError(
                f"--output-path {self._store.url}: job {lease['job']} (process {lease['pid']} of "
                f"{lease['host']}) writes there. Give this job a path of its own; or, if that job "
                f"is over, try again in {left_s:.0f} s."
            )

    def _is_renewed(self, number: int, lease: Mapping[str, Any]) -> bool:
        """Watch a lease for as long as one lasts, and return whether it is still being renewed."""
        deadline = time.monotonic() + self._lasts_s
        while time.monotonic() < deadline:
            time.sleep(self._lasts_s / _RENEWALS / 2)
            found = self._read(number)
            if found is not None and found["until_s"] != lease["until_s"]:
                return True
        return False

    def _record(self) -> bytes:
        record = {
            "owner": self._owner, "job": self._job, "host": os.uname().nodename,
            "boot": boot_id(), "pid": os.getpid(), "pid_namespace": pid_namespace(),
            "until_s": time.time() + self._lasts_s,
        }  # fmt: skip
        return json.dumps(record).encode()

    def _read_whole(self, number: int) -> Mapping[str, Any] | None:
        """Return a lease, once it is written; None: it is gone, or what is there is none."""
        deadline = time.monotonic() + _UNREADABLE_S
        while (lease := self._read(number)) is None and time.monotonic() < deadline:
            if number not in self._numbers():
                return None
            time.sleep(_UNREADABLE_S / 10)
        return lease

    def _read(self, number: int) -> Mapping[str, Any] | None:
        with suppress(
            NotFoundError, ValueError, TypeError, LookupError, RecursionError, OverflowError
        ):
            record = json.loads(bytes(self._store.get(_path(number))))
            numbers = {"pid": int(record["pid"]), "until_s": float(record["until_s"])}
            texts = {name: str(record[name]) for name in ("owner", "job", "host", "boot")}
            return {"pid_namespace": str(record.get("pid_namespace", "")), **numbers, **texts}
        return None

    def _is_own(self, number: int) -> bool:
        lease = self._read(number)
        return lease is not None and lease["owner"] == self._owner


def _is_process_gone(lease: Mapping[str, Any]) -> bool:
    """Whether a lease's process is known to have ended, being one of this machine."""
    # Containers of a machine share its boot, often a name too, and have pids of their own.
    here = (os.uname().nodename, boot_id(), pid_namespace())
    there = (lease["host"], lease["boot"], lease["pid_namespace"])
    is_known = bool(pid_namespace()) and here == there
    return is_known and not exists(int(lease["pid"]))


def _path(number: int) -> str:
    return f"{_LEASE_FOLDER}/{number:06}"


_MODE, _MODE_TO_RUN = 0o644, 0o755


def merge_folders(
    folders: Mapping[str, Path], report: Callable[[str], object],
    fail: Callable[[str], object] | None = None,
) -> dict[str, Path]:  # fmt: skip
    """Return the files of all hosts' folders by name; of several with one name, the newest.

    Links are followed. What is not as the script meant to leave it goes to `fail`, or `report`: a
    file that is still being written is among the files nevertheless.
    """
    found: dict[str, Path] = {}
    for host, folder in sorted(folders.items()):
        if not is_there(folder):
            continue
        outputs = find_output_files(folder)
        for name, why in sorted(outputs.problems().items()):
            (fail or report)(f"{name} of {host} {why}")
        for name, why in sorted(outputs.others.items()):
            report(f"{name} of {host} is left out: {why}")
        for name, path in sorted(outputs.files.items()):
            other = found.get(name)
            if other is not None:
                report(f"{name} was made by several hosts, {host} among them; the newest is taken")
                if other.stat().st_mtime_ns >= path.stat().st_mtime_ns:
                    continue
            found[name] = path
    folders_of_others = {str(each) for name in found for each in PurePosixPath(name).parents}
    for name in sorted(found.keys() & folders_of_others):
        del found[name]
        (fail or report)(f"{name} is a file of one host and a folder of another")
    return found


class _WholeFile:
    """A file of a known size; zeros take the place of what it has lost, or cannot be read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.problem = ""

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        data = b""
        try:
            data = self._file.read(size)
        except OSError as error:
            self.problem = f"cannot be read: {error.strerror or error}"
        if len(data) < size:
            self.problem = self.problem or "has become shorter while it was read"
        return data.ljust(size, b"\0")


def write_archive(files: Mapping[str, Path], to: Path) -> dict[str, str]:
    """Write a gzipped tar archive, sorted, without times and owners; links are followed.

    Returns why files are not in it as they were, by name: they are gone, or became shorter and end
    in zeros. Raises OSError (the disk is full).
    """
    problems: dict[str, str] = {}
    with (
        to.open("wb") as out,
        gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0, compresslevel=1) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(files):
            try:
                descriptor = open_regular_file(files[name])
            except OSError as error:  # it is gone since it was listed
                problems[name] = f"cannot be read: {error.strerror or error}"
                continue
            with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
                status = os.fstat(file.fileno())
                member = tarfile.TarInfo(name)
                member.size = status.st_size
                member.mode = _MODE_TO_RUN if status.st_mode & 0o100 else _MODE
                whole = _WholeFile(file)
                archive.addfile(member, whole)  # type: ignore[arg-type]  # it only reads
                if whole.problem:
                    problems[name] = whole.problem
    return problems


_VERTEX_FOLDERS = ("model", "checkpoints", "logs")
_PARTS = "parts"
_PIECE_BYTES = 8 * 1024 * 1024
_NAMED = 8  # of more files that are not uploaded, the number is printed


class FolderMirror:
    """The upload of a folder's files below a prefix in a store, under their own names."""

    def __init__(
        self, store: Store, prefix: str, folder: Path, report: Callable[[str], object]
    ) -> None:
        self._store, self._prefix, self._folder, self._report = store, prefix, folder, report
        self._scan = FolderScan(folder, lambda _: None)  # what is left is reported at the end
        self._uploaded: dict[str, FileState] = {}

    def one_pass(self) -> None:
        """Upload complete files that are new, links excepted; raises StorageError, OSError."""
        for group in self._scan.look().values():
            if not group.is_complete:
                continue
            for name, state in group.files.items():
                if not state.link:
                    self._upload(name, self._folder / name, state)

    def last_pass(self, fail: Callable[[str], object]) -> None:
        """Upload all files that are complete; `fail` is called for each one that is not.

        Raises StorageError.
        """
        outputs = find_output_files(self._folder)
        for name, why in sorted(outputs.problems().items()):
            fail(f"{self._prefix}/{name} {why}")
        for name, why in sorted(outputs.others.items()):
            self._report(f"{self._prefix}/{name} is left out: {why}")
        for name, path in sorted(outputs.files.items()):
            if name in outputs.open_files:
                continue
            try:
                if is_truncated(path, name):  # what an earlier kill has left
                    self._report(f"{self._prefix}/{name} is left out: {CUT_SHORT}")
                    continue
                state = file_state(path)
            except OSError as error:
                fail(f"{self._prefix}/{name} cannot be read: {error.strerror or error}")
                continue
            if state is not None and _is_storable(name, fail):
                with _unless_unreadable(f"{self._prefix}/{name}", path, fail):
                    self._upload(name, path, state)

    def _upload(self, name: str, path: Path, state: FileState) -> None:
        if self._uploaded.get(name) != state:
            self._store.put(f"{self._prefix}/{name}", path)
            self._uploaded[name] = state


@contextmanager
def _unless_unreadable(name: str, path: Path, fail: Callable[[str], object]) -> Iterator[None]:
    """Run an upload; where its file cannot be read any more, `fail` is called, and others go on."""
    try:
        yield
    except OSError:  # a StorageError is one
        try:
            os.close(open_regular_file(path))
        except OSError as error:
            fail(f"{name} cannot be read: {error.strerror or error}")
        else:
            raise


def _is_storable(name: str, fail: Callable[[str], object]) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        fail(f"{name!a} has a name that no store takes")
        return False
    return True


class JobOutputs:
    """The outputs of the hosts whose folders are on this machine, in the run folder."""

    def __init__(self, store: Store, job: str, run: Path, report: Callable[[str], object]) -> None:
        self._store, self._job, self._run, self._report = store, job, run, report
        self._mirrors: dict[Path, FolderMirror] = {}
        self._failures: list[str] = []

    def meanwhile(self) -> None:
        """Upload files that are synced while the job runs; raises StorageError."""
        for folder, prefix in self._synced_folders().items():
            self._mirror(folder, prefix).one_pass()

    def at_the_end(self, *, of_parts: bool) -> None:
        """Upload everything, with the uploaded parts; or this host's part, for another to merge.

        Raises StorageError (the store does not answer), OSError (there is no room for the
        archives), CheckpointError (all is uploaded but what it names).
        """
        self._upload_all(of_parts=of_parts)
        if self._failures:
            more = len(self._failures) - _NAMED
            raise CheckpointError(
                "not uploaded as the script meant it: "
                f"{', '.join(self._failures[:_NAMED])}{f' and {more} more' if more > 0 else ''}. "
                f"It is still in {self._run}."
            )

    def _upload_all(self, *, of_parts: bool) -> None:
        outputs = self._run / "output"
        of_vertex = {outputs / name: name for name in _VERTEX_FOLDERS if is_there(outputs / name)}
        for folder, prefix in {**self._synced_folders(), **of_vertex}.items():
            self._mirror(folder, prefix).last_pass(self._failures.append)
        trees = self._trees(self._failures.append)
        if of_parts:
            self._send_parts(trees)
            return
        drafts = self._run / "uploads" / "drafts"
        shutil.rmtree(drafts, ignore_errors=True)
        drafts.mkdir(parents=True)
        trees |= self._fetch_parts(drafts)
        try:
            self._send_archives(trees, drafts)
        finally:
            shutil.rmtree(drafts, ignore_errors=True)
        self.remove_parts()

    def remove_parts(self) -> None:
        """Remove what hosts have uploaded to be merged, as of an attempt that was killed then.

        Raises StorageError.
        """
        for info in list(self._store.list(f"{self._job}/{_PARTS}")):
            self._store.delete(info.path)

    def _send_archives(self, trees: Mapping[str, Path], drafts: Path) -> None:
        output = f"{self._job}/output"
        for name, below in (("model", "model"), ("output", "output/data")):
            files = merge_folders(
                {host: tree / below for host, tree in trees.items()}, self._report,
                self._failures.append,
            )  # fmt: skip
            if not files:
                if trees:
                    self._report(f"{below} of the job is empty, so there is no {name}.tar.gz")
                continue
            draft = drafts / f"{name}.tar.gz"
            problems = write_archive(files, draft)
            self._failures += [f"{each} {why}" for each, why in sorted(problems.items())]
            self._store.put(f"{output}/{draft.name}", draft)
            self._report(f"{len(files)} files are at {self._store.url}/{output}/{draft.name}")
        found = [path for tree in trees.values() if (path := tree / "output" / "failure").is_file()]
        names = ["failure", *(f"failure-{number}" for number in range(2, len(found) + 1))]
        failures = {f"{output}/{name}": path for name, path in zip(names, found, strict=False)}
        for name, path in failures.items():
            self._store.put(name, path)
        for info in list(self._store.list(output)):
            is_failure = re.match("failure(-|$)", info.path.removeprefix(f"{output}/"))
            if is_failure and info.path not in failures:  # an earlier attempt's
                self._store.delete(info.path)

    def _send_parts(self, trees: Mapping[str, Path]) -> None:
        for host, tree in trees.items():
            for below in ("model", "output/data"):
                parts = merge_folders({host: tree / below}, self._report, self._failures.append)
                for name, path in parts.items():
                    if not _is_storable(name, self._failures.append):
                        continue
                    with _unless_unreadable(name, path, self._failures.append):
                        self._store.put(f"{self._job}/{_PARTS}/{host}/{below}/{name}", path)
            failure = tree / "output" / "failure"
            if failure.is_file():
                self._store.put(f"{self._job}/{_PARTS}/{host}/output/failure", failure)

    def _fetch_parts(self, drafts: Path) -> dict[str, Path]:
        prefix = f"{self._job}/{_PARTS}"
        trees: dict[str, Path] = {}
        for info in self._store.list(prefix):
            check_path(info.path)  # a store may hold names with "..", which lead out of `drafts`
            host, _, name = info.path.removeprefix(f"{prefix}/").partition("/")
            trees[host] = drafts / "hosts" / host
            path = trees[host] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as out:
                for start, length in split_span(0, info.size_bytes, _PIECE_BYTES):
                    out.write(self._store.get_range(info.path, start, length))
        return trees

    def _synced_folders(self) -> dict[Path, str]:
        trees = self._trees(lambda _: None).values()  # the end says what cannot be read
        folders = [tree / "output" / "intermediate" for tree in trees]
        found = dict.fromkeys(filter(is_there, folders), f"{self._job}/output/intermediate")
        logs = self._run / "output" / "logs"
        return {**found, logs: "logs"} if is_there(logs) else found

    def _trees(self, report: Callable[[str], None]) -> dict[str, Path]:
        """Return what scripts see as /opt/ml by host; `report` hears of what cannot be listed."""
        hosts = self._run / "hosts"
        try:
            names = sorted(os.listdir(hosts))  # noqa: PTH208 - pathlib's may hide errors
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            report(f"{hosts}, which cannot be listed: {error.strerror}")
            return {}
        return {name: tree for name in names if is_there(tree := hosts / name / "ml")}

    def _mirror(self, folder: Path, prefix: str) -> FolderMirror:
        if folder not in self._mirrors:
            self._mirrors[folder] = FolderMirror(self._store, prefix, folder, self._report)
        return self._mirrors[folder]


_POLL_S = 1.0
_NICE = 10


def main(parent: SidecarParent) -> int:
    """Do the task and return the exit code."""
    task = OutputTask(**parent.request)
    declare_leaf()
    os.nice(_NICE)
    return exit_code_of_task(lambda: _upload(task, parent), _print_output_status, task.run)


def _upload(task: OutputTask, parent: SidecarParent) -> None:
    of_parts = task.role == "part"
    store = open_store(task.url)
    lease = Lease(store, task.job)
    outputs = JobOutputs(store, task.job, Path(task.run), _print_output_status)
    if not of_parts:
        try:
            lease.take()
            outputs.remove_parts()
        except StorageError as error:
            raise UsageError(
                f"--output-path {store.url} cannot be written to: {error} Give a URL that can be, "
                "or the credentials for it."
            ) from error
        parent.send({"taken": True})
    with nullcontext() if of_parts else _renewed_lease(lease):
        _upload_while_running(outputs, parent)
        is_ended_by_launcher, _, deadline_s = read_job_end(parent)
        if is_ended_by_launcher:
            late = (
                f"what the job has made was not uploaded within {deadline_s:.0f} s; it is still in "
                "the run's folder."
            )
            with exit_at_deadline(deadline_s, _print_output_status, late, "it"):
                outputs.at_the_end(of_parts=of_parts)


@contextmanager
def _renewed_lease(lease: Lease) -> Iterator[None]:
    """Renew a lease during the block, then release it; this process ends where it is lost."""

    def lost(error: CheckpointError) -> None:
        _print_output_status(str(error))
        os._exit(FENCED_EXIT_CODE)

    try:
        with lease.renewed(lost):
            yield
    finally:
        lease.release()


def _upload_while_running(outputs: JobOutputs, parent: SidecarParent) -> None:
    failing = False
    while not parent.wait(_POLL_S):
        try:
            outputs.meanwhile()
        except OSError as error:  # a StorageError is one
            if not failing:
                _print_output_status(f"{error} It is tried again until it succeeds.")
            failing = True
        else:
            failing = False


def _print_output_status(text: str) -> None:
    print_status(f"output: {text}")


if __name__ == "__main__":
    run_sidecar(main, dies_by=None)
