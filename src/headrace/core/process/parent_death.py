"""Processes that end with their parent, and wrappers that prepare a process and exec a command.

`python -P -m MODULE --name value ... -- command...` is a wrapper: it then runs the command, or
becomes it. `python -m headrace.core.process.parent_death --parent PID [--report FD,...] --
command...` asks for a parent-death signal and executes the command, so that a script is `__main__`
of its own interpreter and its tracebacks are free of Headrace. The setting survives the exec. The
program writes its pid to each FD, a pipe of the parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn


def wrapper_command(
    python: str, module: str, options: Mapping[str, object], command: Sequence[str]
) -> list[str]:
    """Return the command line of a wrapper; the interpreter needs Headrace alone."""
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    # -P: a folder named headrace in the working folder must not be imported.
    return [python, "-P", "-m", module, *flags, "--", *command]


def read_wrapper_arguments(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options by name, and the command, if there is one."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    names = [name.removeprefix("--") for name in arguments[:end:2]]
    return dict(zip(names, arguments[1:end:2], strict=True)), list(arguments[end + 1 :])


def become(command: list[str]) -> NoReturn:
    """Execute a command in place of this program; exit 127 where there is none."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would pass that on
    try:
        os.execvp(command[0], command)  # noqa: S606 - this process is to become the command
    except OSError as error:
        sys.stderr.write(f"headrace: {command[0]} cannot be started: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def die_with_parent(parent_pid: int | None = None, by: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to kill this process when the thread that started it ends.

    The setting survives `exec` and is cleared by `fork`. Linux ties it to the parent's *thread*,
    so a parent starts such children from a thread that lives as long as it does.

    Args:
        parent_pid: The expected parent; if it died before this call, this process ends at once.
        by: The signal that ends it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(by), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent_pid is not None and os.getppid() != parent_pid:
        os.kill(os.getpid(), by)


def ignore_group_signals() -> None:
    """Ignore signals to the process group: the parent ends this process when it needs it no more.

    The parent may want to save first. Children of this process get such signals as usual, except
    ctrl-C.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)


@contextmanager
def ctrl_c_blocked() -> Iterator[None]:
    """Hold ctrl-C back while a child process is started that its parent ends.

    The child inherits that, and so prints no traceback before it ignores the signal itself.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def parent_bound_command(
    python: str, command: Sequence[str], *, pid_pipes: Sequence[int] = ()
) -> list[str]:
    """Return the command line that runs `command` bound to this process.

    The interpreter needs Headrace alone. The program writes its pid to `pid_pipes`, the write ends
    of pipes of this process, as a line of JSON.
    """
    options: dict[str, object] = {"parent": os.getpid()}
    if pid_pipes:
        options["report"] = ",".join(map(str, pid_pipes))
    return wrapper_command(python, "headrace.core.process.parent_death", options, command)


def exec_bound_command(arguments: Sequence[str]) -> NoReturn:
    """Bind this process to its parent and execute the command; exit 127 if there is none."""
    options, command = read_wrapper_arguments(arguments)
    die_with_parent(int(options["parent"]))
    for descriptor in filter(None, options.get("report", "").split(",")):
        _report_pid(f"/proc/{options['parent']}/fd/{descriptor}")
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the launcher waits with signals blocked
    become(command)


def _report_pid(pipe: str) -> None:
    # By /proc, as torchrun's ranks inherit no descriptors. Where that fails, the rank runs anyway.
    with suppress(OSError):
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        os.write(descriptor, b'{"pid": %d}\n' % os.getpid())
        os.close(descriptor)


if __name__ == "__main__":
    exec_bound_command(sys.argv[1:])
