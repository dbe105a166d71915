"""Process groups and sessions that end whole: with their parent, or after the rank that led them.

`python -m headrace.core.process.process_groups --parent PID --by SIGNAL -- command...` runs a
command in a session of its own, and kills all of that session when the command or the parent has
ended. The kernel ends what `ray start` had started, but not what that had started in turn: Ray's
agents of a host notice the end of their node by themselves, and where the head is gone too, they go
on for minutes. So do compilers by which pip builds a package.

torchrun signals the ranks that still live, and with each its process group. It passes over the
group of a rank that has died, whose processes would keep memory and ports from the next ranks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from headrace.core.process.parent_death import die_with_parent, parent_bound_command

_GRACE_S = 6.0
_HANDLED_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}


def session_command(
    python: str, command: Sequence[str], *, by: signal.Signals = signal.SIGTERM
) -> list[str]:
    """Return the command line that runs a command under a warden, tied to this process.

    Args:
        python: The interpreter that runs this file.
        command: What is to run; it leads a session of its own.
        by: The signal that asks the command to end, where SIGTERM asks the warden.
    """
    own = [python, "-P", "-m", "headrace.core.process.process_groups", "--parent", str(os.getpid())]
    return [*own, "--by", str(int(by)), "--", *command]


def main(arguments: Sequence[str]) -> int:
    """Run a node until it ends, is asked to end, or the parent is gone; then nothing of it is left.

    Args:
        arguments: `--parent PID --by SIGNAL -- command...`.
    """
    parent_pid, by, command = int(arguments[1]), int(arguments[3]), arguments[5:]
    signal.pthread_sigmask(signal.SIG_SETMASK, _HANDLED_SIGNALS)  # looked at below, in their turn
    die_with_parent(parent_pid, by=signal.SIGTERM)
    node = subprocess.Popen(parent_bound_command(sys.executable, command), start_new_session=True)
    _wait_for_end(node, parent_pid, by)
    # It is not reaped yet, so group and session are still its own.
    os.killpg(node.pid, signal.SIGKILL)
    while left := _session_processes(node.pid):  # ninja gives each compiler a group of its own
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    code = node.wait()
    return code if code >= 0 else 128 - code


def _session_processes(leader: int) -> list[int]:
    """Return the other processes of a session that run."""
    found = []
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):
            runs = process.info["status"] != psutil.STATUS_ZOMBIE
            if runs and process.pid != leader and os.getsid(process.pid) == leader:
                found.append(process.pid)
    return found


def _wait_for_end(node: subprocess.Popen[bytes], parent_pid: int, by: int) -> None:
    deadline_s: float | None = None
    while os.waitid(os.P_PID, node.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        left_s = 3600.0 if deadline_s is None else deadline_s - time.monotonic()
        if left_s <= 0:
            return
        caught = signal.sigtimedwait(_HANDLED_SIGNALS, left_s)
        if caught is None or caught.si_signo != signal.SIGTERM:
            continue
        if os.getppid() != parent_pid:
            return
        os.kill(node.pid, by)
        deadline_s = deadline_s or time.monotonic() + _GRACE_S


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

_PID_READ_BYTES = 64 * 1024


class RankProcessGroups:
    """The process groups of the ranks of this host, each led by its rank.

    A rank tells its pid before it becomes the script; see `core.tied`. So what it started is
    found after its death, while a daemon that has left its group stays untouched.
    """

    def __init__(self) -> None:
        self._reading, self.pid_pipe = os.pipe()  # written to by way of /proc
        os.set_blocking(self._reading, False)

    def end(self) -> None:
        """Kill what is left of the ranks started so far; all of them must have ended."""
        for pid in self._read_pids():
            # No process gets the number of a group that is not empty. So where one has it, the
            # group was empty, and this is another's.
            if not _is_process(pid):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)

    def _read_pids(self) -> list[int]:
        text = b""
        with suppress(BlockingIOError):  # that was all
            while True:
                text += os.read(self._reading, _PID_READ_BYTES)
        return [int(line) for line in text.splitlines()]


def _is_process(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
