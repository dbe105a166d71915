"""The handle of a started run: its state, logs, end and live switch."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

from headrace.core.errors import LaunchError, RecordsError, UsageError
from headrace.jobs.failure import first_failed_log, last_traceback
from headrace.records.live_switch import LiveSwitch
from headrace.records.reader import Records, find_run, recorded_attempts
from headrace.records.run_folder import LAUNCHER_LOG, Attempt, RunFolder, running_launcher
from headrace.report.live.log_files import LogFiles

if TYPE_CHECKING:
    from headrace.report.open_run import ChartedRun

State = Literal["InProgress", "Completed", "Failed", "Stopped"]
"""A run's state, in SageMaker's words."""
_POLL_S = 0.1
_GRACE_S = 120.0  # what SageMaker gives a job between SIGTERM and SIGKILL
_CHILDREN_END_S = 10.0  # the collector ends by itself once its records are closed
_SWITCH_S = 60.0
_COARSE_S = 2.0  # of a file's time, on some file systems
_FIRST_LOG = "rank-0.stderr"
_LAUNCHER_LINES = (
    "headrace: run folder ", "headrace: hosts emulated ", "headrace: No training step was recorded",
    "headrace: No step was recorded",
)  # fmt: skip
_STOP_CODES = (128 + 15, 128 + 2, 128 + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHandle:
    """One attempt of a run."""

    path: Path
    number: int
    begin: int = 0  # offset in bytes at which the attempt's output begins in the launcher's log
    # The launcher, if this process started it
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, run: str | Path) -> RunHandle:
        """Return the latest attempt of a run, whatever process started it.

        `run` is the run folder, or its name in the runs folder. Raises UsageError (there is no such
        run).
        """
        path = find_run(str(run))
        return cls(path=path, number=len(RunFolder(path).attempts()))

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def attempt(self) -> Attempt | None:
        """The attempt in run.json; None: it has not begun, or was refused."""
        attempts = RunFolder(self.path).attempts()
        return attempts[self.number - 1] if len(attempts) >= self.number else None

    @property
    def exit_code(self) -> int | None:
        """The exit code of `headrace run`; None: it runs, or was killed without a record."""
        attempt = self.attempt
        if attempt is not None and attempt.exit_code is not None:
            return attempt.exit_code
        code = None if self.process is None else self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    @property
    def state(self) -> State:
        """The attempt's state: InProgress, Completed, Failed or Stopped."""
        if self._pid() is not None:
            return "InProgress"
        code, attempt = self.exit_code, self.attempt
        if code in _STOP_CODES or (attempt is not None and attempt.reason):
            return "Stopped"
        return "Completed" if code == 0 else "Failed"

    def open(self) -> ChartedRun:
        """Return the records of the attempt, as `headrace.open_run` does."""
        from headrace.report.open_run import open_run

        return open_run(self.path, self.number)

    def wait(self) -> int:
        """Wait for the end of the attempt and return its exit code."""
        self._until_ended(lambda: None)
        code = self.exit_code
        return 128 + signal.SIGKILL if code is None else code  # it recorded nothing

    def logs(self) -> int:
        """Print the attempt's output from its beginning to its end; return the exit code."""
        files: dict[Path, _LogPrinter] = {}

        def show() -> None:
            for path, begin, prefix in self._output_files():
                files.setdefault(path, _LogPrinter(path, begin, prefix)).show()

        self._until_ended(show)
        show()
        return self.wait()

    def stop(self, grace_s: float = _GRACE_S) -> None:
        """Send SIGTERM to the attempt; after the grace period, kill it and all its processes."""
        pid = self._pid()
        if pid is None:
            return
        try:
            leader = psutil.Process(pid)
            below = leader.children(recursive=True)
            leader.terminate()
        except psutil.NoSuchProcess:
            return
        if not self._ends_within(grace_s):
            below = [*below, *_children(leader)]
            leader.kill()  # its child processes end with it
            self._ends_within(_CHILDREN_END_S)
            self._note_killed()
        _, left = psutil.wait_procs(below, timeout=_CHILDREN_END_S)
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=_CHILDREN_END_S)

    def switch(self) -> LiveSwitch:
        """Return the live switch that changes the recording of a running job.

        Raises RecordsError (the job does not run, or is not recorded).
        """
        deadline = time.monotonic() + _SWITCH_S
        while self._pid() is not None and time.monotonic() < deadline:
            if self.number in recorded_attempts(self.path):
                records = Records(self.path, self.number)
                if records.live:
                    return LiveSwitch(records.folder)
            time.sleep(_POLL_S)
        raise RecordsError(f"{self.name} is not recorded at this moment: nothing is to switch.")

    def check(self) -> None:
        """Raise where the attempt failed or was refused.

        Raises UsageError (it was refused before anything ran), LaunchError (it failed; the message
        ends with its last output).
        """
        code, state = self.exit_code, self.state
        if state in {"Completed", "InProgress", "Stopped"}:
            return
        log = self._log()
        ran = any(RunFolder(self.path).logs(self.number).rglob("*.std*"))
        if not ran and code is not None:
            message = _last_message(_failure_text(_tail(log, self.begin)))
            raise UsageError(message) if code == UsageError.exit_code else LaunchError(message)
        how = "was killed" if code is None else f"failed with exit code {code}"
        message = _failure_text(last_traceback(log))
        raise LaunchError(f"{self.name} {how}. Its last words:\n{message}\nAll that it said: {log}")

    def _log(self) -> Path:
        """Return the log that says why the attempt failed."""
        ours = self._launcher_log()
        if ours is not None:
            return ours
        logs = self.path / "logs"
        names = (each["name"] for each in LogFiles(self.path, self.number).listed())
        errors = [logs / name for name in names if name.endswith(".stderr")]
        last_start = [log for log in errors if log.parent == errors[0].parent]
        return first_failed_log(last_start) or RunFolder(self.path).logs(self.number) / _FIRST_LOG

    def _launcher_log(self) -> Path | None:
        """Return the log of the launcher and all ranks; None: a command line started the attempt.

        Then the log may be there of an attempt before.
        """
        log, attempt = self.path / LAUNCHER_LOG, self.attempt
        try:
            written_s = log.stat().st_mtime
        except FileNotFoundError:
            return None
        if self.process is not None or attempt is None:
            return log
        return log if written_s + _COARSE_S >= attempt.started_s else None

    def _output_files(self) -> list[tuple[Path, int, str]]:
        """Return the attempt's output files, the offset of each, and a prefix for its lines."""
        ours = self._launcher_log()
        if ours is not None:
            return [(ours, self.begin, "")]
        found = sorted(RunFolder(self.path).logs(self.number).rglob("*.std*"))
        alone = len({path.stem for path in found}) == 1
        return [(path, 0, "" if alone else f"[{path.stem}] ") for path in found]

    def _pid(self) -> int | None:
        if self.process is not None:
            return self.process.pid if self.process.poll() is None else None
        attempt = self.attempt
        return None if attempt is None else running_launcher(self.path, attempt.launcher)

    def _until_ended(self, meanwhile: Callable[[], None]) -> None:
        while self._pid() is not None:
            meanwhile()
            time.sleep(_POLL_S)

    def _note_killed(self) -> None:
        """Record the end of an attempt that was killed and could not record it."""
        attempt, folder = self.attempt, RunFolder(self.path)
        if attempt is not None and attempt.ended_s is None:
            with suppress(OSError, LaunchError):
                folder.end_attempt(self.number, 128 + signal.SIGKILL)
                folder.note_reason(self.number, "Stopped: it outlasted its grace")

    def _ends_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._pid() is not None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return self._pid() is None


class _LogPrinter:
    """A log file that is printed to standard output as it grows, in a notebook cell, say."""

    def __init__(self, log: Path, begin: int, prefix: str) -> None:
        self._log = log
        self._offset = begin
        self._prefix = prefix

    def show(self) -> None:
        try:
            with self._log.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        self._offset += end
        lines = text[:end].decode(errors="replace").splitlines(keepends=True)
        sys.stdout.write("".join(self._prefix + line for line in lines))
        sys.stdout.flush()


def _failure_text(text: str) -> str:
    """Return a failure's output without the lines that the launcher prints for every run."""
    return "\n".join(line for line in text.splitlines() if not line.startswith(_LAUNCHER_LINES))


def _last_message(text: str) -> str:
    """Return the launcher's last message, which is its error, without the notes before it."""
    begin = f"\n{text}".rfind("\nheadrace: ")
    return text[max(begin, 0) :].removeprefix("headrace: ")


def _tail(log: Path, begin: int) -> str:
    try:
        with log.open("rb") as file:
            file.seek(begin)
            return file.read()[-4096:].decode(errors="replace").strip()
    except FileNotFoundError:
        return "It ended before it said anything."


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []
