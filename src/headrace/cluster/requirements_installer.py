"""The installer of a job's requirements.txt on a host: pip, its lock and its failures.

`python -m headrace.cluster.requirements_installer --parent PID --announce FD --job KEY --file PATH
--named yes|no --logs FOLDER --name HOST --longest-s SECONDS [-- command...]` runs pip in the
environment of this interpreter, then executes the command, if any. It writes lines of JSON to FD:
`{"installing": "pip's last line"}` while pip runs, then `{"installed": [...], "by_another":
false}`, with `"conflicts": [...]` where other packages lost what they require, or `{"left_out":
"why"}` where it goes on without, or `{"not_installed": "why"}` before it exits with 1.

Emulated hosts share an environment, as do hosts whose home is on a network disk. There one process
installs at a time, and once for each job.
"""

from __future__ import annotations

import json
import os
import re
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import IO, Any

from headrace.core.file_lock import open_lock_file, try_lock
from headrace.core.process.parent_death import die_with_parent, read_wrapper_arguments
from headrace.core.process.process_groups import session_command
from headrace.core.process.process_kill import end_process
from headrace.core.process.supervision import STOP_SIGNALS, StoppedError, pause
from headrace.records.redaction import redact_text

_LOCK_FILE = ".headrace-requirements"
_POLL_S = 0.2


class InstallLock:
    """The lock on an environment; its file records the last install.

    `descriptor` is the locked file's; None if no folder of the environment is writable.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def installed_by(self, job: str) -> list[str] | None:
        """Return what the last install here added, if the job with this key did it; else None."""
        if self._descriptor is None:
            return None
        with suppress(ValueError, KeyError, TypeError):  # the file is empty, or cut off
            record = json.loads(os.pread(self._descriptor, 1 << 20, 0))
            if (record["job"], record["image"]) == (job, _interpreter_identity()):
                return [str(each) for each in record["installed"]]
        return None

    def record(self, job: str, installed: list[str]) -> None:
        """Record what was installed, for other hosts of the same job."""
        if self._descriptor is None:
            return
        with suppress(OSError):  # a full disk: the next host runs pip again
            os.ftruncate(self._descriptor, 0)
            record = {"job": job, "image": _interpreter_identity(), "installed": installed}
            os.pwrite(self._descriptor, json.dumps(record).encode(), 0)


@contextmanager
def install_lock(pause: Callable[[float], None]) -> Iterator[InstallLock]:
    """Lock this interpreter's environment against other installs for the block.

    `pause` sleeps for some seconds; what it raises ends the wait for the lock.
    """
    descriptor = _open_lock_file()
    try:
        while descriptor is not None and not try_lock(descriptor, required=False):
            pause(_POLL_S)
        yield InstallLock(descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _interpreter_identity() -> list[str | int]:
    """Return what distinguishes this interpreter from one of another image with the same home.

    If two hosts see one environment under different device numbers, pip runs once more.
    """
    prefix, program = Path(sys.prefix).stat(), Path(sys.executable).stat()
    return [
        sys.version, sys.prefix, prefix.st_dev, prefix.st_ino, program.st_dev, program.st_ino,
        program.st_mtime_ns,
    ]  # fmt: skip


def _open_lock_file() -> int | None:
    # pip installs into the second where it may not write to the first.
    for folder in (sysconfig.get_path("purelib"), site.getusersitepackages()):
        with suppress(OSError):
            Path(folder).mkdir(parents=True, exist_ok=True)
            return open_lock_file(Path(folder) / _LOCK_FILE)
    return None


_LAST_LINES = 12
_CONSTRAINT_CONFLICT = re.compile(
    r"\(constraint\) (?P<name>torch|ray|headrace)==(?P<version>\S+)", re.IGNORECASE
)
_ADVICE = {
    r"\(constraint\)": "What it asks for does not go with what torch, Ray and Headrace need. "
    "Loosen the range that pip names.",
    r"externally-managed-environment": "That Python is the system's own. Start Ray there in a "
    "virtual environment.",
    r"No module named '?pip": "That environment has no pip. Run `python -m ensurepip`, or `uv pip "
    "install pip`, with its Python.",
    r"no such option: --report": "That environment's pip is too old. Run `python -m pip install -U "
    "pip` with its Python.",
    r"Retrying \(Retry\(|Failed to establish a new connection|Name or service not known": "The "
    "host does not reach the package index. PIP_INDEX_URL goes along with the job and names "
    "another; or let the wheels lie beside the script: --no-index and --find-links in the file.",
    r"No matching distribution found|Could not find a version": "Check the name and the version, "
    "and whether there is one for the host's Python and platform.",
    r"Could not open (?:requirements|constraints?) file|does not exist|Invalid requirement": "Is "
    "every file that it names below the folder that goes along, and not in .gitignore?",
    r"Permission denied|Read-only file system": "That environment may not be written. Start Ray "
    "in one that may, or install the packages there beforehand.",
    r"No space left on device": "Make room there.",
    r"ResolutionImpossible": "No versions fit one another. Loosen the ranges that pip names.",
}
"""Remedies by patterns of pip's output; the first match counts."""


def last_output_lines(output: str) -> str:
    """Return the last lines of pip's output, indented."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    return "\n".join(f"    {line}" for line in lines[-_LAST_LINES:])


def pip_advice(output: str) -> str:
    """Return the remedy for a failure, by pip's output; "" if no pattern matches."""
    conflict = _CONSTRAINT_CONFLICT.search(output)
    if conflict is not None:
        name, version = conflict["name"], conflict["version"]
        return (
            f"It asks for another {name} than {version}, which the host has and keeps: another "
            "build may not fit its devices, or the other hosts. Leave it out of the file, loosen "
            "its range, or install that version on all hosts beforehand."
        )
    return next((remedy for pattern, remedy in _ADVICE.items() if re.search(pattern, output)), "")


_PINNED_PACKAGES = ("torch", "ray", "headrace")
"""Never replaced: another build may not fit the devices, or the other hosts."""
_CONFLICT = re.compile(r"^\S.* requires .+, but you have .+ which is incompatible", re.MULTILINE)
_NO_PIP = (
    f"the environment of {sys.executable} has no pip, so what the file names has to be there "
    "already. `python -m ensurepip` or `uv pip install pip` with that Python brings it."
)
_FIRST_STATUS_S = 2.0  # pip takes half a second if all is installed
_STATUS_INTERVAL_S = 30.0
_RESTORE_S = 60.0
_KILLED = 128 + signal.SIGKILL
_OUTPUT_DRAIN_S = 5.0
_WAIT_S = 1.0


class _NotInstalledError(Exception):
    """The requirements are not installed; the message says why, and what to do."""


def main(arguments: Sequence[str]) -> int:
    """Install; then return the exit code, or execute the command, if one is given."""
    options, command = read_wrapper_arguments(arguments)
    die_with_parent(int(options["parent"]))
    signal.pthread_sigmask(signal.SIG_BLOCK, {*STOP_SIGNALS, signal.SIGCHLD})
    install = _Installation(
        file=Path(options["file"]).absolute(), job=options["job"],
        log=Path(options["logs"]).absolute() / f"requirements-{options['name']}.log",
        longest_s=float(options["longest-s"]), descriptor=int(options["announce"]),
        is_named=options["named"] == "yes",
    )  # fmt: skip
    try:
        install.run()
    except _NotInstalledError as error:
        install.announce({"not_installed": str(error)})
        return 1
    except StoppedError as stopped:
        return 128 + stopped.number
    if command:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execv(command[0], command)  # noqa: S606 - this process is to become the command
    return 0


@dataclass(kw_only=True)
class _Installation:
    """One install of one requirements file."""

    file: Path
    log: Path  # for pip's output
    job: str  # its key: hosts that share an environment install once
    longest_s: float
    descriptor: int  # for lines of JSON
    is_named: bool  # by the user, so that a missing pip is an error

    def __post_init__(self) -> None:
        self._deadline_s = time.monotonic() + self.longest_s
        self._next_status_s = time.monotonic() + _FIRST_STATUS_S
        self._has_lock = False

    def run(self) -> None:
        if not self.file.is_file():
            raise _NotInstalledError(
                f"{self.file.name} is not among what came along. Does .gitignore name it?"
            )
        if not self.is_named and find_spec("pip") is None:
            self.announce({"left_out": _NO_PIP})
            return
        with install_lock(self._pause) as lock:
            self._has_lock = True
            earlier = lock.installed_by(self.job)
            installed = self._pip() if earlier is None else earlier
            lock.record(self.job, installed)
        conflicts = _CONFLICT.findall(self._pip_output()) if earlier is None else []
        conflict_fields = {"conflicts": conflicts} if conflicts else {}
        self.announce(
            {"installed": installed, "by_another": earlier is not None, **conflict_fields}
        )

    def announce(self, message: dict[str, Any]) -> None:
        with suppress(OSError):  # the agent is gone
            os.write(self.descriptor, json.dumps(message).encode() + b"\n")

    def _pip(self) -> list[str]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix="headrace-pip-") as scratch,
            self.log.open("wb", buffering=0) as log,
        ):
            constraints, report = Path(scratch) / "constraints.txt", Path(scratch) / "report.json"
            constraints.write_text("".join(f"{line}\n" for line in pinned_requirements()))
            command = [
                # -P: pip must not import modules from the script's folder.
                sys.executable, "-P", "-m", "pip", "install", "--requirement", str(self.file),
                "--constraint", str(constraints), "--report", str(report), "--no-input",
                "--disable-pip-version-check", "--no-color", "--progress-bar", "off",
                "--root-user-action", "ignore",
            ]  # fmt: skip
            process = subprocess.Popen(
                session_command(sys.executable, command, by=signal.SIGINT),
                # Relative paths in the file start at its folder.
                cwd=self.file.parent,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # it outlives this process until pip has ended
            )
            assert process.stdout is not None
            reader = Thread(target=_write_log, args=[process.stdout, log], daemon=True)
            reader.start()
            try:
                while process.poll() is None:
                    self._pause(_WAIT_S)
            except BaseException:
                process.terminate()  # interrupts pip, which restores what it was replacing
                end_process(process, _RESTORE_S)
                raise
            reader.join(_OUTPUT_DRAIN_S)  # a process that pip left running may hold the pipe open
            if process.returncode != 0:
                raise self._failed(process.returncode)
            return _installed_packages(report)

    def _pause(self, seconds: float) -> None:
        """Wait until a child ends, some seconds at most; raise on a signal or at the deadline."""
        pause({*STOP_SIGNALS, signal.SIGCHLD}, seconds)
        now_s = time.monotonic()
        if now_s > self._deadline_s:
            raise _NotInstalledError(
                f"It has taken longer than {self.longest_s:.0f} s. pip's last lines:\n"
                f"{last_output_lines(self._pip_output())}\nInstall what takes so long on the hosts "
                "beforehand, or name wheels of it."
                if self._has_lock
                else "Others have been installing into that environment for longer than "
                f"{self.longest_s:.0f} s. Start the job again once they have ended."
            )
        if now_s > self._next_status_s:
            self._next_status_s = now_s + _STATUS_INTERVAL_S
            lines = self._pip_output().strip().splitlines() if self._has_lock else []
            self.announce({"installing": lines[-1].strip() if lines else ""})

    def _pip_output(self) -> str:
        try:
            return self.log.read_text(errors="replace")
        except OSError:
            return ""

    def _failed(self, returncode: int) -> _NotInstalledError:
        output = self._pip_output()
        killed = "It was killed: often memory ran out." if returncode == _KILLED else ""
        return _NotInstalledError(
            f"pip of {sys.executable} ended with {returncode}. Its last lines:\n"
            f"{last_output_lines(output)}\n{pip_advice(output) or killed}".rstrip()
        )


def pinned_requirements() -> list[str]:
    """Return lines of a constraints file that pin what an install may not replace."""
    lines = []
    for name in _PINNED_PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            lines.append(f"{name}=={metadata.version(name)}")
            lines += [
                re.sub(r"\[[^\]]*\]", "", each)  # constraints may not have extras
                for each in metadata.requires(name) or ()
                if "extra ==" not in each
            ]
    return lines


def _write_log(output: IO[bytes], log: IO[bytes]) -> None:
    """Write the output of pip and its children to the log, without the secrets in it."""
    with suppress(ValueError):  # the log was closed meanwhile
        for line in output:
            with suppress(OSError):  # a full disk: pip goes on
                log.write(redact_text(line.decode(errors="replace")).encode())


def _installed_packages(report: Path) -> list[str]:
    """Return the installed packages by pip's report, as NAME==VERSION."""
    entries = json.loads(report.read_text())["install"]
    return sorted(f"{each['metadata']['name']}=={each['metadata']['version']}" for each in entries)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
