"""What stands between a Ray node and whoever started it: with either's end, all of the node ends.

`python -m headrace.cluster.node_warden --parent PID -- ray start --block ...`. The kernel ends what
`ray start` had started, but not what that had started in turn: Ray's agents of a host notice the
end of their node by themselves, and where the head is gone too, they go on for minutes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from headrace.core.lifetime import die_with_parent
from headrace.core.tied import tied_command

_GRACE_S = 6.0
_HEEDED = {signal.SIGTERM, signal.SIGCHLD}


def warden_command(python: str, command: Sequence[str]) -> list[str]:
    """Return the command line that runs a Ray node under a warden, tied to this process.

    Args:
        python: The interpreter that runs this file.
        command: The node's; it leads a session of its own.
    """
    own = [python, "-P", "-m", "headrace.cluster.node_warden", "--parent", str(os.getpid())]
    return [*own, "--", *command]


def main(arguments: Sequence[str]) -> int:
    """Run a node until it ends, is asked to end, or the parent is gone; then nothing of it is left.

    Args:
        arguments: `--parent PID -- command...`.
    """
    parent_pid, command = int(arguments[1]), arguments[3:]
    signal.pthread_sigmask(signal.SIG_SETMASK, _HEEDED)  # looked at below, in their turn
    die_with_parent(parent_pid, by=signal.SIGTERM)
    node = subprocess.Popen(tied_command(sys.executable, command), start_new_session=True)
    _wait(node, parent_pid)
    os.killpg(node.pid, signal.SIGKILL)  # it is not reaped yet, so the group is still its own
    return node.wait()


def _wait(node: subprocess.Popen[bytes], parent_pid: int) -> None:
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
        os.kill(node.pid, signal.SIGTERM)
        deadline_s = deadline_s or time.monotonic() + _GRACE_S


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
