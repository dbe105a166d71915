"""The folder of a run: `run.json` with its attempts, their launcher, `logs/` and `records/`.

A launcher has a lock on the folder, which the kernel releases when its process ends. Unlike a pid
it also works across containers, and across hosts if their shared file system has locks.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import psutil

from headrace.core import env
from headrace.core.boot_id import boot_id
from headrace.core.errors import LaunchError, UsageError
from headrace.core.file_lock import is_locked, lock_within, open_lock_file
from headrace.core.files import is_temporary, sync_folder, write_text_atomically
from headrace.records.layout import RECORDS
from headrace.records.redaction import hide_secrets, redact

_START_TOLERANCE_S = 1.0  # of a start time read twice, if the clock was adjusted in between


def process_identity(pid: int) -> dict[str, Any]:
    """Return host, pid and start, which identify a process of this host.

    The start is in ticks since the host's boot, too: its time of day moves with the clock.
    """
    try:
        began_s = psutil.Process(pid).create_time()
    except psutil.Error:  # it has ended
        began_s = 0.0
    known = {"host": platform.node(), "pid": pid, "began_s": began_s}
    return {**known, "began_ticks": _start_ticks(pid), "boot": boot_id()}


def _start_ticks(pid: int) -> int | None:
    """Return when a process began, in clock ticks since boot; None where that cannot be read."""
    try:
        # The process's name, in parentheses, may hold any character.
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2]
        return int(status.split()[19])
    except (OSError, IndexError, ValueError):
        return None


def running_pid(launcher: Mapping[str, Any]) -> int | None:
    """Return the pid of the process of an identity if it runs on this host, else None."""
    if not launcher or launcher["host"] != platform.node():
        return None
    try:
        process = psutil.Process(launcher["pid"])
        is_same = _began_as(process, launcher)
        is_alive = process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return process.pid if is_same and is_alive else None


def _began_as(process: psutil.Process, identity: Mapping[str, Any]) -> bool:
    """Whether a process began when that of an identity did; older ones have no ticks."""
    ticks = identity.get("began_ticks")
    if ticks is not None:
        return (ticks, identity["boot"]) == (_start_ticks(process.pid), boot_id())
    return bool(abs(process.create_time() - identity["began_s"]) < _START_TOLERANCE_S)


def running_launcher(folder: Path, launcher: Mapping[str, Any]) -> int | None:
    """Return the pid of the launcher of a run's attempt if it runs on this host, else None.

    A copy of the folder, made while the job runs, names the launcher, too: that of a copy runs
    nothing there.
    """
    return None if _is_copy(folder, launcher) else running_pid(launcher)


def may_run_elsewhere(folder: Path, launcher: Mapping[str, Any]) -> bool:
    """Whether a run's folder is a copy that came from another host, where its launcher may run."""
    is_others = bool(launcher) and launcher["host"] != platform.node()
    return is_others and _is_copy(folder, launcher)


def _is_copy(folder: Path, launcher: Mapping[str, Any]) -> bool:
    try:
        is_same = launcher.get("folder") in {None, folder.stat().st_ino}
    except OSError:
        return False
    if is_same:
        return False
    with _MUTEX:  # some file systems change such numbers, but then the launcher holds the lock
        return folder not in _LOCKS and not is_locked(folder / _LOCK_FILE, unknown=True)


def has_ended_on_this_host(launcher: Mapping[str, Any]) -> bool:
    """Whether the process of an identity ran on this host and has ended."""
    is_here = bool(launcher) and launcher["host"] == platform.node()
    return is_here and running_pid(launcher) is None


def take_job_request() -> dict[str, Any]:
    """Return the job request from the environment, secrets hidden, and remove it from there."""
    text = env.JOB_REQUEST.get()
    env.change({env.JOB_REQUEST.name: None})
    if text is None:
        return {}
    request: dict[str, Any] = hide_secrets(json.loads(text))
    return request


_LOCK_FILE = "run.json.held"
_EXIT_TIMEOUT_S = 10.0  # for the kernel to end the processes of a killed launcher
_LOCK_WAIT_S = 1.0  # a process that looks whether it is locked may be slow to go on
_CHANGE_WAIT_S = 60.0  # for other processes to change run.json, which takes them milliseconds
_POLL_S = 0.02

_LOCKS: dict[Path, int] = {}  # open for as long as this process lives
_MUTEX = threading.Lock()


def lock_run(folder: Path) -> bool:
    """Lock a run's folder until this process ends; return False if another one has it.

    On a file system without locks every process succeeds.
    """
    with _MUTEX:
        if folder in _LOCKS:
            return True
        descriptor = open_lock_file(folder / _LOCK_FILE)
        # `is_locked` may hold it for an instant.
        is_ours = lock_within(descriptor, _LOCK_WAIT_S, required=False)
        if is_ours:
            _LOCKS[folder] = descriptor
        else:
            os.close(descriptor)
        return is_ours


def is_run_locked(folder: Path) -> bool:
    """Whether another process has locked a run's folder."""
    with _MUTEX:  # between our own `open_lock_file` and `_LOCKS`, our lock looks like another's
        return folder not in _LOCKS and is_locked(folder / _LOCK_FILE, unknown=False)


def wait_for_killed_launcher(folder: Path, launcher: Mapping[str, Any]) -> None:
    """Wait up to ten seconds for a launcher that was killed here: its processes hold the lock."""
    deadline = time.monotonic() + _EXIT_TIMEOUT_S
    while is_run_locked(folder) and time.monotonic() < deadline:
        if not has_ended_on_this_host(launcher):
            return
        time.sleep(_POLL_S)


RUNS_FOLDER = "runs"
_FOLDER_MODE = 0o700  # logs and a script's files may hold what other users must not see
_RUN_FILE = "run.json"
_FORMAT_VERSION = 1
Outcome = Literal["succeeded", "failed", "stopped", "killed", "going on", "unknown"]
"""How an attempt is doing: see `attempt_outcomes.py`."""
_STOPPED_CODES = frozenset({128 + 15, 128 + 2, 128 + 1})
LAUNCHER_LOG = "launcher.log"
"""The output of `headrace run` and its ranks where an Estimator started it."""
LOG_BEGIN = "log_begin"
"""Of a launcher: where its attempt begins in that log, in bytes; None: it prints elsewhere."""
_STANDARD_OUTPUT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of a run's script; secrets are hidden in command lines and requests."""

    number: int  # from 1
    command: tuple[str, ...]  # the command line as it was typed
    argv: tuple[str, ...]  # the script and its arguments
    world_size: int
    started_s: float  # since 1970 (UTC)
    ended_s: float | None = None  # None while it runs, or if its launcher was killed
    exit_code: int | None = None  # of `headrace run`; None if `ended_s` is
    versions: dict[str, str] = field(default_factory=dict)  # of Python, headrace and torch
    installed: dict[str, list[str]] = field(default_factory=dict)  # NAME==VERSION, by host
    asked: dict[str, Any] = field(default_factory=dict)  # job request of an Estimator or job file
    launcher: dict[str, Any] = field(default_factory=dict)  # see `process_identity`, LOG_BEGIN
    reason: str = ""  # why it was ended early, such as MaxRuntimeExceeded; "" if it was not
    folder: str = ""  # where the command was typed; "" in files of an older version
    hides_secrets: bool = False  # whether `command` differs from what was typed
    groups: list[dict[str, Any]] = field(default_factory=list)  # as `recorded_groups` returns them
    started_boot_s: float = 0.0  # by the launcher's machine, since its boot; 0: an older version's

    @property
    def lasted_s(self) -> float | None:
        """How long it took; None while it has no end."""
        return None if self.ended_s is None else max(self.ended_s - self.started_s, 0.0)

    def now_s(self) -> float:
        """Return this moment in seconds since 1970, by the clock as it was at the start.

        On the launcher's machine a clock that is set meanwhile makes no difference.
        """
        if self.started_boot_s and self.launcher.get("boot") == boot_id():
            return self.started_s + max(_since_boot_s() - self.started_boot_s, 0.0)
        return max(time.time(), self.started_s)

    @property
    def ending(self) -> Outcome:
        """How the attempt ended, if it has: without an exit code it was killed."""
        if self.exit_code is None:
            return "killed"
        if self.exit_code == 0:
            return "succeeded"
        return "stopped" if self.reason or self.exit_code in _STOPPED_CODES else "failed"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run's folder on local disk."""

    path: Path  # absolute

    def logs(self, attempt: int) -> Path:
        """Return the folder of an attempt's logs, made at its start."""
        return self.path / "logs" / f"attempt-{attempt}"

    def records(self, attempt: int) -> Path:
        """Return the folder of an attempt's records; it need not exist."""
        return self.path / RECORDS / f"attempt-{attempt}"

    def attempts(self) -> tuple[Attempt, ...]:
        """Return the run's attempts, oldest first; raises LaunchError where run.json is broken."""
        file = self.path / _RUN_FILE
        try:
            run = json.loads(file.read_text(encoding="utf-8"))
            if run["version"] > _FORMAT_VERSION:
                raise LaunchError(
                    f"A newer Headrace wrote {file} (format {run['version']}, this one knows up "
                    f"to {_FORMAT_VERSION}). Use that version: pip install -U headrace."
                )
            attempts = [
                {**entry, "command": tuple(entry["command"]), "argv": tuple(entry["argv"])}
                for entry in run["attempts"]
            ]
            return tuple(Attempt(**entry) for entry in attempts)
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LaunchError(
                f"{file} cannot be read: {error}. Mend it, or take another "
                "folder with --run-dir or --name."
            ) from error

    def check_free(self, launcher: int | None = None) -> None:
        """Raise UsageError where an attempt runs, unless its launcher has that pid, or ours."""
        attempts = self.attempts()
        last = attempts[-1] if attempts else None
        wait_for_killed_launcher(self.path, last.launcher if last is not None else {})
        running = None if last is None else running_launcher(self.path, last.launcher)
        if is_run_locked(self.path) or running not in (None, launcher or os.getpid()):
            raise _already_running(self.path, last)

    def other_job(self, attempt: Attempt) -> str:
        """Return a sentence about an attempt of another script than the one before; "" of others.

        Such attempts are one run, whose records, checkpoints and metrics are taken together.
        """
        before = [each for each in self.attempts() if each.number < attempt.number]
        if not before:
            return ""
        scripts = [Path(each.argv[0]).name if each.argv else "" for each in (before[-1], attempt)]
        if scripts[0] == scripts[1] or "" in scripts:
            return ""
        return (
            f"{self.path.name} is a run of {scripts[0]}, and {scripts[1]} is its attempt "
            f"{attempt.number}: for a run of its own give it another --name or --run-dir"
        )

    def start_attempt(
        self,
        *,
        command: Sequence[str],
        argv: Sequence[str],
        world_size: int,
        launcher: int | None = None,
        groups: Sequence[Mapping[str, Any]] = (),
    ) -> Attempt:
        """Add a new attempt to run.json, make its logs folder, and return it.

        This process locks the folder until it ends, as a run has one attempt at a time. `launcher`
        is the pid of `headrace run`; None: this process. UsageError: an attempt is running.
        LaunchError: the folder cannot be written, or its run.json cannot be read.
        """
        try:
            self.check_free(launcher)
            versions = _versions()
            current_folder = ""
            with suppress(FileNotFoundError):  # removed meanwhile
                current_folder = str(Path.cwd())
            with self._locked():
                before = self.attempts()
                if not before:
                    sync_folder(self.path.parent)  # which has the run's folder in it
                if not lock_run(self.path):  # another one started at the same moment
                    raise _already_running(self.path, before[-1] if before else None)
                attempt = Attempt(
                    number=len(before) + 1,
                    command=redact(command),
                    argv=redact(argv),
                    world_size=world_size,
                    started_s=time.time(),
                    started_boot_s=_since_boot_s(),
                    versions=versions,
                    asked=take_job_request(),
                    launcher={
                        **process_identity(launcher or os.getpid()),
                        "folder": self.path.stat().st_ino,
                        LOG_BEGIN: self._log_begin(),
                    },
                    folder=current_folder,
                    hides_secrets=redact(command) != tuple(command),
                    groups=[dict(group) for group in groups],
                )
                self._write((*before, attempt))
            self.logs(attempt.number).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LaunchError(
                f"{self.path}: the run cannot be written down there: {error.strerror or error}. "
                "Make room, or take another folder with --run-dir."
            ) from error
        return attempt

    def _log_begin(self) -> int | None:
        """Return how long the launcher's log is if this process prints there, else None."""
        try:
            log, output = (self.path / LAUNCHER_LOG).stat(), os.fstat(_STANDARD_OUTPUT)
        except OSError:  # there is none, or the output is closed
            return None
        return log.st_size if os.path.samestat(log, output) else None

    def end_attempt(self, number: int, exit_code: int) -> None:
        """Record exit code and end; raises OSError if the folder is gone, and LaunchError."""
        self._change(
            number,
            lambda attempt: replace(attempt, ended_s=attempt.now_s(), exit_code=exit_code),
        )

    def note_installed(self, number: int, host: str, packages: Sequence[str]) -> None:
        """Record what a host installed for an attempt; raises as `end_attempt` does."""
        self._change(
            number,
            lambda attempt: replace(attempt, installed={**attempt.installed, host: list(packages)}),
        )

    def note_reason(self, number: int, reason: str) -> None:
        """Record why an attempt is ended early; raises as `end_attempt` does."""
        self._change(number, lambda attempt: replace(attempt, reason=reason))

    def note_job_request(self, number: int, more: Mapping[str, Any]) -> None:
        """Add to an attempt's job request; raises as `end_attempt` does."""
        self._change(number, lambda attempt: replace(attempt, asked={**attempt.asked, **more}))

    def _change(self, number: int, changed: Callable[[Attempt], Attempt]) -> None:
        with self._locked():
            self._write([changed(a) if a.number == number else a for a in self.attempts()])

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock run.json against other processes for the block."""
        # A separate file, as network file systems lock files for all hosts, but not folders.
        lock = self.path / f"{_RUN_FILE}.lock"
        descriptor = open_lock_file(lock)
        try:
            if not lock_within(descriptor, _CHANGE_WAIT_S, required=False):
                raise LaunchError(
                    f"{lock}: another process has held this lock for {_CHANGE_WAIT_S:.0f} s. End "
                    f"it (fuser {lock} names it), or take another folder with --run-dir."
                )
            yield
        finally:
            os.close(descriptor)

    def _write(self, attempts: Sequence[Attempt]) -> None:
        run = {
            "version": _FORMAT_VERSION,
            "name": self.path.name,
            "attempts": [asdict(attempt) for attempt in attempts],
        }
        text = json.dumps(run, indent=2) + "\n"
        write_text_atomically(self.path / _RUN_FILE, text, durable=True)


def _since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def runs_folder(runs_dir: str | None = None) -> Path:
    """Return the runs folder: `runs_dir`, else that of HEADRACE_RUNS_DIR, else `./runs`."""
    return Path(runs_dir or env.RUNS_DIR.get() or RUNS_FOLDER).expanduser()


def open_run_folder(
    *, run_dir: str | None, name: str | None, script: str, runs_dir: str | None = None
) -> RunFolder:
    """Return the folder of a run, created if needed; that of an existing run for its next attempt.

    `run_dir` is the folder itself, or `name` its name in the runs folder; by default it is
    `<script>-<date>-<time>` there. UsageError: the name is not valid, the folder holds other files,
    or cannot be made.
    """
    if run_dir is not None and name is not None:
        raise UsageError("--run-dir names the folder itself and --name one of the runs: give one.")
    if name is not None and not is_plain_name(name):
        raise UsageError(f"--name {name!r}: a run's name is a plain folder name, such as 'base-2'.")
    try:
        if run_dir is None and name is None:
            return RunFolder(_new_folder(script, runs_folder(runs_dir)))
        named = runs_folder(runs_dir) / (name or "")
        path = named if run_dir is None else Path(run_dir).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(_FOLDER_MODE, exist_ok=True)  # one that the user made keeps his mode
        # A run that starts at this moment has a temporary run.json there.
        others = [
            each
            for each in path.iterdir()
            if not each.name.startswith((_RUN_FILE, LAUNCHER_LOG)) and not is_temporary(each.name)
        ]
        if others and not (path / _RUN_FILE).exists():
            raise UsageError(
                f"{path} holds files but no run.json, so it is no run's folder. "
                "Give an empty or a new one."
            )
    except OSError as error:
        raise UsageError(
            f"The run's folder cannot be made: {error}. Give another with --run-dir."
        ) from error
    return RunFolder(path.resolve())


def is_plain_name(name: object) -> bool:
    """Whether a run's name, which a notebook may give as anything, names a folder and no path."""
    if not isinstance(name, str) or not name or not name.isprintable():
        return False
    return name == Path(name).name and not name.startswith(".")


_SCRIPT_SUFFIXES = {".py", ".pyw", ".pyc", ".pyz", ".zip", ".sh", ".bash", ".zsh", ".ksh"}


def _new_folder(script: str, runs: Path) -> Path:
    path = Path(script.replace("\0", "_"))
    # A module's name, or a name such as resnet-1.5, has dots and no suffix.
    name = path.stem if path.suffix in _SCRIPT_SUFFIXES else path.name
    plain = "".join(each if each.isprintable() else "_" for each in name.lstrip("."))
    stem = f"{plain or 'run'}-{time.strftime('%Y%m%d-%H%M%S')}"
    runs.mkdir(parents=True, exist_ok=True)
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        path = runs / f"{stem}{suffix}"
        try:
            path.mkdir(_FOLDER_MODE)
        except FileExistsError:  # another run started in the same second
            continue
        return path.resolve()
    raise UsageError(f"{runs / stem} and 999 more exist. Name this run with --name.")


def _already_running(path: Path, last: Attempt | None) -> UsageError:
    details, stop = "", "stop it"
    # An attempt that is just starting is not in run.json yet; then the last one has ended.
    is_last = last is not None and (
        last.ended_s is None or running_launcher(path, last.launcher) is not None
    )
    if last is not None and is_last and not has_ended_on_this_host(last.launcher) and last.launcher:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last.started_s))
        host, pid = last.launcher["host"], last.launcher["pid"]
        details = f" since {since}, led by process {pid} on {host} (attempt {last.number})"
        stop = f"stop it by kill {pid} there"
    return UsageError(
        f"{path.name} is running{details}. Wait until it has ended, {stop}, or take another run's "
        "name or folder."
    )


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("headrace", "torch"):
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions
