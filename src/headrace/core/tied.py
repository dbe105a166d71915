"""A program that ends when whoever started it does, such as a rank when torchrun has ended.

`python -m headrace.core.tied --parent PID [--tell FD] -- command...` asks for a parent-death signal
and replaces itself by the command; so a script is `__main__` of its own interpreter and nothing of
Headrace is in its tracebacks. The setting survives the exec. The parent is told the program's pid
through FD, a pipe that it holds.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from headrace.core.lifetime import die_with_parent


def tied_command(
    python: str, command: Sequence[str], *, told_through: int | None = None
) -> list[str]:
    """Return the command line that starts `command` tied to this process.

    Args:
        python: The interpreter that runs this file; needs Headrace, and nothing else.
        command: What is to run.
        told_through: The writing end of a pipe of this process, where the program tells its pid.
    """
    # -P: a folder named headrace where the user stands must not be taken for ours.
    own = [python, "-P", "-m", "headrace.core.tied", "--parent", str(os.getpid())]
    tell = [] if told_through is None else ["--tell", str(told_through)]
    return [*own, *tell, "--", *command]


def become(arguments: Sequence[str]) -> NoReturn:
    """Tie this process to its parent and exec the command; exits 127 where there is none."""
    end = arguments.index("--")
    told = dict(zip(arguments[:end:2], arguments[1:end:2], strict=True))
    parent_pid, command = int(told["--parent"]), list(arguments[end + 1 :])
    die_with_parent(parent_pid)
    if "--tell" in told:
        _tell_pid(f"/proc/{parent_pid}/fd/{told['--tell']}")
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the launcher waits with signals blocked
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would pass that on
    try:
        os.execvp(command[0], command)  # noqa: S606  (becoming the command is the purpose)
    except OSError as error:
        sys.stderr.write(f"headrace: {command[0]} cannot be started: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def _tell_pid(pipe: str) -> None:
    # torchrun passes no descriptors on to its ranks. A host that hides /proc costs no rank.
    with suppress(OSError):
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        os.close(descriptor)


if __name__ == "__main__":
    become(sys.argv[1:])
