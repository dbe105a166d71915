"""A program that runs a command and, as a child subreaper, kills what it leaves in its group.

`python -P -m headrace.core.process.subreaper --parent PID -- command...` runs a command in its own
process group, forwards signals to it, and ends as it does. If the command fails or is killed, or
the parent dies, its processes that are still in the group are killed: a parent-death signal reaches
the command alone, and its workers may wait for something that never comes. What has left the group
means to stay, and so does what a command leaves that ends well; but not the ranks of a torchrun
that the command is or runs, each of which leads a session of its own.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from pathlib import Path

from headrace.core.process.parent_death import (
    die_with_parent,
    read_wrapper_arguments,
    wrapper_command,
)
from headrace.core.process.supervision import signals_blocked, wait_for

KILL_SIGNAL = signal.SIGRTMIN
"""Kills the command and what it has started; this program itself then ends as the command does."""
_PR_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>
_KILLED_S, _POLL_S = 10.0, 0.01
"""A process in an uninterruptible read is left after that."""


def subreaper_command(python: str, command: Sequence[str]) -> list[str]:
    """Return the command line that runs a command whose processes end with it, and with us."""
    module, options = "headrace.core.process.subreaper", {"parent": os.getpid()}
    return wrapper_command(python, module, options, command)


def main(arguments: Sequence[str]) -> int:
    """Run a command to its end and return its code, -n for signal n."""
    options, command = read_wrapper_arguments(arguments)
    _hide_command()
    parent_pid = int(options["parent"])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # where it fails, only the command is killed
    signal.pthread_sigmask(signal.SIG_BLOCK, {KILL_SIGNAL})
    with signals_blocked() as held:
        die_with_parent(parent_pid, by=KILL_SIGNAL)
        try:
            child = subprocess.Popen(
                command,
                close_fds=False,
                # This process has one thread, so Python code between fork and exec is safe.
                preexec_fn=partial(_bind, os.getpid()),  # noqa: PLW1509
            )
        except OSError as error:
            sys.stderr.write(f"headrace: {command[0]} cannot be started: {error.strerror}\n")
            return 127 if isinstance(error, FileNotFoundError) else 126
        _close_inherited()
        groups = {os.getpgrp()}
        code = wait_for(
            child,
            held,
            own_session=False,
            kill_signal=KILL_SIGNAL,
            killing=lambda: groups.update(_rank_groups(child.pid)),
        )
        if code != 0:
            kill_orphans(groups)
    return code


def _hide_command() -> None:
    """Overwrite the command among this process's arguments: only the script shows its secrets.

    See proc(5): `cmdline` is read from the process's memory, from `arg_start` to `arg_end`.
    """
    words = Path("/proc/self/cmdline").read_bytes()
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # the first of them is field 3
    shown = words.index(b"\0--\0") + len(b"\0--\0")
    if end - begin == len(words):  # both are 0 where the kernel does not tell
        ctypes.memset(begin + shown, 0, len(words) - shown)


def _bind(parent_pid: int) -> None:
    """Prepare the command's process, before it executes the command."""
    die_with_parent(parent_pid)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the launcher waits with signals blocked


def _close_inherited() -> None:
    """Close what the command has inherited, such as a shell's `<(command)` and its own output."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  (it is /proc)
        with suppress(OSError):
            os.close(descriptor)
    for _ in range(3):  # in place of standard input and output
        os.open(os.devnull, os.O_RDWR)


def _rank_groups(command: int) -> list[int]:
    """Return the process groups of the ranks that a torchrun below, or the command itself, runs.

    Only the ranks themselves have a parent without torchrun's variables.
    """
    found, left = [], [(command, _has_torchruns_variables(command))]
    while left:
        pid, is_in_rank = left.pop()
        for child in _children(pid):
            is_rank = _has_torchruns_variables(child)
            if is_rank and not is_in_rank and _is_in_group(child, {child}):
                found.append(child)
            left.append((child, is_rank))
    return found


def _has_torchruns_variables(pid: int) -> bool:
    try:
        return b"TORCHELASTIC_RUN_ID=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended
        return False


def kill_orphans(groups: AbstractSet[int]) -> None:
    """Kill children of this process, adopted ones too, that are in some process groups."""
    deadline = time.monotonic() + _KILLED_S
    while (left := [pid for pid in _children() if _is_in_group(pid, groups)]) and (
        time.monotonic() < deadline
    ):
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_POLL_S)


def _children(pid: int | str = "self") -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # the process has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # the thread has ended
                found += map(int, (task / "children").read_text().split())
    return found


def _is_in_group(pid: int, groups: AbstractSet[int]) -> bool:
    try:
        return os.getpgid(pid) in groups
    except ProcessLookupError:
        return False


def _end_like(code: int) -> int:
    """Return an exit code, or end by the signal that ended the command."""
    if code >= 0:
        return code
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has written its core
    with suppress(OSError, ValueError):  # SIGKILL has no handler
        signal.signal(-code, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os.kill(os.getpid(), -code)
    return 128 - code


if __name__ == "__main__":
    sys.exit(_end_like(main(sys.argv[1:])))
