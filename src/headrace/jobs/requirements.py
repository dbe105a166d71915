"""The requirements file of a job: where it is, its installation on this host, its progress.

As on SageMaker, the requirements.txt of `source_dir` is installed where that is given.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import LaunchError, UsageError
from headrace.core.process.process_kill import end_process
from headrace.core.process.sidecar import MessageReader
from headrace.jobs.spec import ContractOptions, ScriptOptions
from headrace.records.run_folder import Attempt, RunFolder

if TYPE_CHECKING:
    from headrace.jobs.torchrun_args import TorchrunJob

SKIP_HINT = "`--requirements none` leaves the file out."
MAX_INSTALL_S = 1800.0
"""Time limit of an installation, in seconds; large packages may have to be built."""
_SILENCE_S = 300.0  # an installer tells every half minute what pip does
_END_S = 90.0  # for pip to restore what it was replacing
_DEFAULT_FILE = "requirements.txt"
_NONE = "none"


def code_folder(job: TorchrunJob) -> Path:
    """Return a job's code folder; for a module the current one, as its own is not known."""
    source_dir, script = job.spec.contract.source_dir, job.spec.script
    if source_dir is not None:
        return Path(source_dir)
    return Path() if script.is_module or script.is_program else Path(job.script).parent


def find_requirements(given: str | None, code: Path | None) -> Path | None:
    """Return the file to install; None: nothing is installed.

    `given` is the file, or `none`; where it is None, it is the requirements.txt in the code folder,
    if that is known and has one. Raises UsageError (there is no such file).
    """
    if given == _NONE:
        return None
    if given is None:
        is_there = code is not None and (code / _DEFAULT_FILE).is_file()
        return _normalized(code / _DEFAULT_FILE) if code is not None and is_there else None
    if not Path(given).is_file():
        raise UsageError(
            f"--requirements {given}: there is no such file in {Path.cwd()}. Name one, or `none`."
        )
    return _normalized(Path(given))


def _normalized(file: Path) -> Path:
    # Links are not resolved: on other machines their targets are copied in their place.
    return Path(os.path.normpath(file.absolute()))


@dataclass
class InstallProgress:
    """The progress of one file's installation on all hosts, from the messages of installers."""

    file: str
    folder: RunFolder
    attempt: int
    why_not: dict[str, str] = field(default_factory=dict)  # reasons of failures, by host name

    def __post_init__(self) -> None:
        self._installing: set[str] = set()  # hosts that have announced it

    def handle_message(self, host: str, announced: dict[str, Any]) -> bool:
        """Handle a message of a host's installer; return whether the job can go on there."""
        if "installing" in announced:
            pip_output = announced["installing"]
            more = f" (pip: {pip_output})" if pip_output and host in self._installing else ""
            self._installing.add(host)
            print_status(f"{host} installs {self.file}{more}")
        elif "installed" in announced:
            if announced["installed"] and not announced["by_another"]:
                print_status(f"{host} has installed {', '.join(announced['installed'])}")
            for conflict in announced.get("conflicts", ()):
                print_status(f"{host}: what was there is broken now: {conflict}")
            self._note(host, announced["installed"])
        elif "left_out" in announced:
            print_status(f"{host} installs no {self.file}: {announced['left_out']}")
        elif "not_installed" in announced:
            why = announced["not_installed"]
            is_known = why in self.why_not.values()
            self.why_not[host] = why
            more = "for the same reason" if is_known else why
            print_status(f"{host}: {self.file} cannot be installed: {more}")
            return False
        return True

    def _note(self, host: str, installed: Sequence[str]) -> None:
        try:
            self.folder.note_installed(self.attempt, host, installed)
        except (OSError, LaunchError) as error:
            print_status(f"what {host} has installed cannot be written down: {error}")


_THIS_HOST = "this host"


def install_requirements(
    options: ContractOptions, around: ScriptOptions, folder: RunFolder, attempt: Attempt
) -> None:
    """Have pip install the requirements of a job on this host, into its Python environment.

    Raises UsageError (there is no such file), LaunchError (the installation failed).
    """
    source_dir = Path(options.source_dir) if options.source_dir is not None else None
    file = find_requirements(around.requirements, source_dir)
    if file is None:
        return
    logs = folder.logs(attempt.number)
    progress = InstallProgress(file.name, folder, attempt.number)
    read_fd, write_fd = os.pipe()
    command = [
        sys.executable, "-u", "-P", "-m", "headrace.cluster.requirements_installer",
        "--parent", str(os.getpid()), "--announce", str(write_fd), "--job", secrets.token_hex(8),
        "--file", str(file), "--named", "no" if around.requirements is None else "yes",
        "--logs", str(logs), "--name", "host", "--longest-s", str(MAX_INSTALL_S),
    ]  # fmt: skip
    pip = subprocess.Popen(command, pass_fds=(write_fd,), env=env.child_environment())
    os.close(write_fd)
    try:
        is_silent = not _handle_messages(read_fd, progress)
    except KeyboardInterrupt:  # pip has got ctrl-C, too
        end_process(pip, _END_S)
        sys.exit(130)
    finally:
        os.close(read_fd)
    code = end_process(pip, 0 if is_silent else _END_S)
    if code != 0:
        why = f" (its installer said nothing for {_SILENCE_S:.0f} s, and was killed)"
        raise LaunchError(
            f"{file.name} could not be installed{why if is_silent else ''}, and the script was not "
            f"started. All that pip said: {logs}/requirements-host.log. {SKIP_HINT}"
        )


def _handle_messages(descriptor: int, progress: InstallProgress) -> bool:
    """Handle an installer's messages to their end; False where none came for too long."""
    messages = MessageReader(descriptor)
    while messages.wait(_SILENCE_S):
        message = messages.read()
        if message is None:
            return True
        progress.handle_message(_THIS_HOST, message)
    return False
