"""Whether a process is there, and the kill of a child, whose end is waited for only so long."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Any

from headrace.core.console import print_status

_KILL_S = 30.0


def exists(pid: int) -> bool:
    """Whether there is a process of that number, of any user.

    /proc may hide those of other users (hidepid), whose signals are refused instead.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def end_process(process: subprocess.Popen[Any], patience_s: float) -> int | None:
    """Wait for a child that is about to end, and kill it then; returns as `kill_process`."""
    try:
        return process.wait(patience_s)
    except subprocess.TimeoutExpired:
        return kill_process(process)


def kill_process(process: subprocess.Popen[Any], longest_s: float = _KILL_S) -> int | None:
    """Kill a child and wait for its end; return its code, -n for signal n.

    A process in the kernel's hands, such as in a read of a mount that does not answer, ends only
    with that: after `longest_s` seconds it is left behind, named, and None is returned.
    """
    process.kill()
    try:
        return process.wait(longest_s)
    except subprocess.TimeoutExpired:
        print_status(
            f"process {process.pid} was killed and has not ended within {longest_s:.0f} s: it "
            "waits for a disk or a mount that does not answer. It is left behind: look at it."
        )
        return None


def run_within(
    command: Sequence[str], longest_s: float, *, kill_s: float = _KILL_S
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end, and return its code and output; raises subprocess.TimeoutExpired.

    `subprocess.run` with a timeout waits on for a process in the kernel's hands, such as in a
    driver: this one is left behind as `kill_process` does.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        output, errors = process.communicate(timeout=longest_s)
    except BaseException:
        kill_process(process, kill_s)
        raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
