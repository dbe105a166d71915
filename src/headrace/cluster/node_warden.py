"""What stands between a Ray node and whoever started it: with either's end, all of the node ends.

`python -m headrace.cluster.node_warden --parent PID --by SIGNAL -- ray start --block ...`. The
kernel ends what `ray start` had started, but not what that had started in turn: Ray's agents of a
host notice the end of their node by themselves, and where the head is gone too, they go on for
minutes. So do compilers that pip builds a package by, and pip has a warden, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

from headrace.core.lifetime import die_with_parent
from headrace.core.tied import tied_command

_GRACE_S = 6.0
_HEEDED = {signal.SIGTERM, signal.SIGCHLD}


def warden_command(
    python: str, command: Sequence[str], *, by: signal.Signals = signal.SIGTERM
) -> list[str]:
    """Return the command line that runs a command under a warden, tied to this process.

    Args:
        python: The interpreter that runs this file.
        command: What is to run; it leads a session of its own.
        by: The signal that asks the command to end, where SIGTERM asks the warden.
    """
    own = [python, "-P", "-m", "headrace.cluster.node_warden", "--parent", str(os.getpid())]
    return [*own, "--by", str(int(by)), "--", *command]


def main(arguments: Sequence[str]) -> int:
    """Run a node until it ends, is asked to end, or the parent is gone; then nothing of it is left.

    Args:
        arguments: `--parent PID --by SIGNAL -- command...`.
    """
    parent_pid, by, command = int(arguments[1]), int(arguments[3]), arguments[5:]
    signal.pthread_sigmask(signal.SIG_SETMASK, _HEEDED)  # looked at below, in their turn
    die_with_parent(parent_pid, by=signal.SIGTERM)
    node = subprocess.Popen(tied_command(sys.executable, command), start_new_session=True)
    _wait(node, parent_pid, by)
    # It is not reaped yet, so group and session are still its own.
    os.killpg(node.pid, signal.SIGKILL)
    while left := _of_session(node.pid):  # ninja gives each compiler a group of its own
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    code = node.wait()
    return code if code >= 0 else 128 - code


def _of_session(leader: int) -> list[int]:
    """Return the other processes of a session that run."""
    found = []
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):
            runs = process.info["status"] != psutil.STATUS_ZOMBIE
            if runs and process.pid != leader and os.getsid(process.pid) == leader:
                found.append(process.pid)
    return found


def _wait(node: subprocess.Popen[bytes], parent_pid: int, by: int) -> None:
    deadline_s: float | None = None
    while os.waitid(os.P_PID, node.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        left_s = 3600.0 if deadline_s is None else deadline_s - time.monotonic()
        if left_s <= 0:
            return
        caught = signal.sigtimedwait(_HEEDED, left_s)
        if caught is None or caught.si_signo != signal.SIGTERM:
            continue
        if os.getppid() != parent_pid:
            return
        os.kill(node.pid, by)
        deadline_s = deadline_s or time.monotonic() + _GRACE_S


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
