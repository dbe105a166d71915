"""POSIX sessions and process groups that are killed whole when their leader or parent ends.

`python -m headrace.core.process.process_groups --parent PID --by SIGNAL -- command...` runs a
command in a session of its own, and kills the whole session when the command or the parent has
ended. Parent-death signals reach children, but not grandchildren: Ray's agents notice the end of
their node only after minutes if the head is gone, too, and compilers would outlive pip.

torchrun signals the process groups of the ranks that live, but not that of a rank that has died,
whose processes would hold memory and ports that the next ranks need. Where torchrun itself is
killed, its ranks get a parent-death signal, and their workers do not: see `rank_group_guard`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from headrace.core.process.parent_death import (
    die_with_parent,
    parent_bound_command,
    read_wrapper_arguments,
    wrapper_command,
)
from headrace.core.process.process_kill import kill_process
from headrace.core.process.sidecar import Sidecar

_GRACE_S = 6.0
_KILL_S = 30.0  # for processes that were killed to end
_HANDLED_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}


def session_command(
    python: str, command: Sequence[str], *, by: signal.Signals = signal.SIGTERM
) -> list[str]:
    """Return the command line that runs a command as the leader of a session bound to this process.

    A SIGTERM to the program is translated to `by` for the command.
    """
    options = {"parent": os.getpid(), "by": int(by)}
    return wrapper_command(python, "headrace.core.process.process_groups", options, command)


def main(arguments: Sequence[str]) -> int:
    """Run a command until it ends, SIGTERM comes, or the parent is gone; then kill its session."""
    options, command = read_wrapper_arguments(arguments)
    parent_pid = int(options["parent"])
    signal.pthread_sigmask(signal.SIG_SETMASK, _HANDLED_SIGNALS)  # received by sigtimedwait below
    die_with_parent(parent_pid, by=signal.SIGTERM)
    leader = subprocess.Popen(parent_bound_command(sys.executable, command), start_new_session=True)
    _wait_for_end(leader, parent_pid, int(options["by"]))
    # It is not reaped yet, so its pid still names its group and session.
    os.killpg(leader.pid, signal.SIGKILL)
    until_s = time.monotonic() + _KILL_S  # no longer: a disk that does not answer may hold one
    # ninja gives each compiler a group of its own
    while (left := _session_processes(leader.pid)) and time.monotonic() < until_s:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    code = kill_process(leader)
    if code is None:
        return 128 + signal.SIGKILL
    return code if code >= 0 else 128 - code


def _session_processes(leader: int) -> list[int]:
    """Return the running processes of a session, except its leader."""
    found = []
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):
            runs = process.info["status"] != psutil.STATUS_ZOMBIE
            if runs and process.pid != leader and os.getsid(process.pid) == leader:
                found.append(process.pid)
    return found


def _wait_for_end(leader: subprocess.Popen[bytes], parent_pid: int, by: int) -> None:
    deadline_s: float | None = None
    while os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        left_s = 3600.0 if deadline_s is None else deadline_s - time.monotonic()
        if left_s <= 0:
            return
        caught = signal.sigtimedwait(_HANDLED_SIGNALS, left_s)
        if caught is None or caught.si_signo != signal.SIGTERM:
            continue
        if os.getppid() != parent_pid:
            return
        os.kill(leader.pid, by)
        deadline_s = deadline_s or time.monotonic() + _GRACE_S


_PID_READ_BYTES = 64 * 1024


class RankProcessGroups:
    """The process groups of the ranks of this host, each led by its rank.

    A rank reports its pid before it executes the script; see `parent_death`. So its children are
    found after its death, while a daemon that has left its group is not touched. A sidecar kills
    them where this process is killed first.
    """

    def __init__(self) -> None:
        self._pid_read, pid_pipe = os.pipe()  # ranks write by /proc
        os.set_blocking(self._pid_read, False)
        self._guard = Sidecar("headrace.core.process.rank_group_guard", {})
        self.pid_pipes = (pid_pipe, self._guard.input_fd)

    def release(self) -> None:
        """Have what the ranks leave outlive this process."""
        self._guard.kill()

    def end(self) -> None:
        """Kill what remains of the ranks started so far, all of which must have ended."""
        pids = self._read_pids()
        for pid in pids:
            # The kernel never reuses the id of a non-empty group as a pid: if a process has it,
            # the rank's group was empty.
            if not Path(f"/proc/{pid}").exists():
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
        self._guard.send({"ended": pids})

    def _read_pids(self) -> list[int]:
        text = b""
        with suppress(BlockingIOError):  # nothing more
            while True:
                text += os.read(self._pid_read, _PID_READ_BYTES)
        return [json.loads(line)["pid"] for line in text.splitlines()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
