"""A job's requirements.txt, installed on a host before anything of the job runs there.

`python -m headrace.cluster.installing --parent PID --announce FD --job KEY --file PATH
--named yes|no --logs FOLDER --name HOST --longest-s SECONDS [-- command...]` has pip install into
the environment of this interpreter, and becomes the command, if there is one. It writes lines of
JSON to FD:
`{"installing": "pip's last line"}` while that takes time, then `{"installed": [...], "by_another":
false}`, with `"conflicts": [...]` where other packages no longer have what they require, or
`{"left_out": "why"}` where it goes on without, or `{"not_installed": "why"}` before it exits with
1.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import IO, Any, NoReturn

from headrace.cluster.environment_turn import environment_turn
from headrace.cluster.node_warden import warden_command
from headrace.cluster.pip_failures import advice, last_lines
from headrace.core.lifetime import die_with_parent
from headrace.records.redaction import without_users

_KEPT = ("torch", "ray", "headrace")
"""What stays as it is: another build may not fit the devices, or the other hosts."""
_CONFLICT = re.compile(r"^\S.* requires .+, but you have .+ which is incompatible", re.MULTILINE)
_NO_PIP = (
    f"the environment of {sys.executable} has no pip, so what the file names has to be there "
    "already. `python -m ensurepip` or `uv pip install pip` with that Python brings it."
)
_STOPPING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_LONG_S = 2.0  # what is satisfied already takes pip half a second
_TELL_EVERY_S = 30.0
_KILLED = 128 + signal.SIGKILL
_LAST_WORDS_S = 5.0
_WAIT_S = 1.0


class _NotInstalledError(Exception):
    """The message says why, and what to do."""


class _StoppedError(Exception):
    """Somebody asked this process to stop."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def main(arguments: Sequence[str]) -> int:
    """Install, and return the exit code, unless a command follows."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    told = dict(zip(arguments[:end:2], arguments[1:end:2], strict=True))
    die_with_parent(int(told["--parent"]))
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_STOPPING, signal.SIGCHLD})
    install = _Install(
        file=Path(told["--file"]), job=told["--job"],
        log=Path(told["--logs"]) / f"requirements-{told['--name']}.log",
        longest_s=float(told["--longest-s"]), announce=int(told["--announce"]),
        is_named=told["--named"] == "yes",
    )  # fmt: skip
    try:
        install.run()
    except _NotInstalledError as error:
        install.announce({"not_installed": str(error)})
        return 1
    except _StoppedError as stopped:
        return 128 + stopped.number
    command = arguments[end + 1 :]
    return _become(command) if command else 0


def _become(command: Sequence[str]) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.execv(command[0], list(command))  # noqa: S606  (becoming the command is the purpose)


class _Install:
    """One install of one file.

    Args:
        file: In the job's folder.
        log: Takes all that pip says.
        job: Its key: once is enough where hosts share an environment.
        longest_s: Longest time for all of it, in seconds.
        announce: A descriptor for lines of JSON.
        is_named: The user named the file: without pip nothing goes on.
    """

    def __init__(
        self, *, file: Path, log: Path, job: str, longest_s: float, announce: int, is_named: bool
    ) -> None:
        self._file = file.absolute()
        self._log = log.absolute()
        self._job = job
        self._longest_s = longest_s
        self._deadline_s = time.monotonic() + longest_s
        self._tell_s = time.monotonic() + _LONG_S
        self._announce = announce
        self._is_named = is_named
        self._is_turn = False

    def run(self) -> None:
        if not self._file.is_file():
            raise _NotInstalledError(
                f"{self._file.name} is not among what came along. Does .gitignore name it?"
            )
        if not self._is_named and find_spec("pip") is None:
            self.announce({"left_out": _NO_PIP})
            return
        with environment_turn(self._pause) as turn:
            self._is_turn = True
            others = turn.installed_by(self._job)
            installed = self._pip() if others is None else others
            turn.note(self._job, installed)
        broken = conflicts(self._said()) if others is None else []
        more = {"conflicts": broken} if broken else {}
        self.announce({"installed": installed, "by_another": others is not None, **more})

    def announce(self, told: dict[str, Any]) -> None:
        with suppress(OSError):  # nobody listens any more
            os.write(self._announce, json.dumps(told).encode() + b"\n")

    def _pip(self) -> list[str]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix="headrace-pip-") as own,
            self._log.open("wb", buffering=0) as log,
        ):
            constraints, report = Path(own) / "constraints.txt", Path(own) / "report.json"
            constraints.write_text("".join(f"{line}\n" for line in kept_as_they_are()))
            command = [
                # -P: a module of the script's must not be taken for one of pip's.
                sys.executable, "-P", "-m", "pip", "install", "--requirement", str(self._file),
                "--constraint", str(constraints), "--report", str(report), "--no-input",
                "--disable-pip-version-check", "--no-color", "--progress-bar", "off",
                "--root-user-action", "ignore",
            ]  # fmt: skip
            process = subprocess.Popen(
                warden_command(sys.executable, command, by=signal.SIGINT),
                # What it names lies beside it.
                cwd=self._file.parent,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # it outlives this process until all of pip has ended
            )
            assert process.stdout is not None
            reader = Thread(target=_write_down, args=[process.stdout, log], daemon=True)
            reader.start()
            try:
                while process.poll() is None:
                    self._pause(_WAIT_S)
            except BaseException:
                _end(process)
                raise
            reader.join(_LAST_WORDS_S)  # what pip left running may keep the pipe open
            if process.returncode != 0:
                raise self._failed(process.returncode)
            return _packages(report)

    def _pause(self, seconds: float) -> None:
        """Wait for a child to end, so many seconds at most."""
        caught = signal.sigtimedwait({*_STOPPING, signal.SIGCHLD}, seconds)
        if caught is not None and caught.si_signo in _STOPPING:
            raise _StoppedError(caught.si_signo)
        now_s = time.monotonic()
        if now_s > self._deadline_s:
            raise _NotInstalledError(
                f"It has taken longer than {self._longest_s:.0f} s. pip's last lines:\n"
                f"{last_lines(self._said())}\nInstall what takes so long on the hosts beforehand, "
                "or name wheels of it."
                if self._is_turn
                else "Others have been installing into that environment for longer than "
                f"{self._longest_s:.0f} s. Start the job again once they have ended."
            )
        if now_s > self._tell_s:
            self._tell_s = now_s + _TELL_EVERY_S
            said = self._said().strip().splitlines() if self._is_turn else []
            self.announce({"installing": said[-1].strip() if said else ""})

    def _said(self) -> str:
        try:
            return self._log.read_text(errors="replace")
        except OSError:
            return ""

    def _failed(self, returncode: int) -> _NotInstalledError:
        said = self._said()
        killed = "It was killed: often memory ran out." if returncode == _KILLED else ""
        return _NotInstalledError(
            f"pip of {sys.executable} ended with {returncode}. Its last lines:\n"
            f"{last_lines(said)}\n{advice(said) or killed}".rstrip()
        )


def kept_as_they_are() -> list[str]:
    """Return lines of a constraints file: what an install may not replace here."""
    lines = []
    for name in _KEPT:
        with suppress(metadata.PackageNotFoundError):
            lines.append(f"{name}=={metadata.version(name)}")
            needs = [each for each in metadata.requires(name) or () if "extra ==" not in each]
            lines += [re.sub(r"\[[^\]]*\]", "", each) for each in needs]  # no extras there
    return lines


def conflicts(said: str) -> list[str]:
    """Return what the host had that no longer has what it requires, in pip's words.

    Args:
        said: All that pip said.
    """
    return [match.group() for match in _CONFLICT.finditer(said)]


def _write_down(said: IO[bytes], log: IO[bytes]) -> None:
    """Write down what pip and its children say, without tokens: git tells whole URLs."""
    with suppress(ValueError):  # the log is closed: nobody waits for more
        for line in said:
            with suppress(OSError):  # a full disk: pip goes on
                log.write(without_users(line.decode(errors="replace")).encode())


def _packages(report: Path) -> list[str]:
    """Return what pip's own report says that it installed, as NAME==VERSION."""
    entries = json.loads(report.read_text())["install"]
    return sorted(f"{each['metadata']['name']}=={each['metadata']['version']}" for each in entries)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have pip put back what it was replacing, and its warden end it and what it builds by."""
    process.terminate()
    process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
