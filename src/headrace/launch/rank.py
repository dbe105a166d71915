"""What torchrun starts in place of the script: ties the rank to its launcher, then becomes it.

`python -m headrace.launch.rank --parent PID -- command...` asks for a parent-death signal and
replaces itself by the command, so the script is `__main__` of its own interpreter and nothing of
Headrace is in its tracebacks. The setting survives the exec.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from headrace.core.lifetime import die_with_parent


def rank_command(python: str, command: Sequence[str]) -> list[str]:
    """Return the command line that starts `command` tied to this process.

    Args:
        python: The interpreter that runs this file; needs Headrace, and nothing else.
        command: What the rank is to become.
    """
    # -P: a folder named headrace where the user stands must not be taken for ours.
    own = [python, "-P", "-m", "headrace.launch.rank", "--parent", str(os.getpid()), "--"]
    return [*own, *command]


def become_rank(arguments: Sequence[str]) -> NoReturn:
    """Tie this process to its parent and exec the command; exits 127 where there is none."""
    parent_pid, command = int(arguments[1]), list(arguments[3:])
    die_with_parent(parent_pid)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the launcher waits with signals blocked
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would pass that on
    try:
        os.execvp(command[0], command)  # noqa: S606  (becoming the command is the purpose)
    except OSError as error:
        sys.stderr.write(f"headrace: {command[0]} cannot be started: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    become_rank(sys.argv[1:])
