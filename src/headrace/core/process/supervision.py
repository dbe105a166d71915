"""Supervision of one child process: signals forwarded to it, and its end awaited."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
DEFAULT_GRACE_S = 30.0
"""How long a script may take that otherwise has any time, once the job has to end."""
_FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
_LONGEST_WAIT_S = 1.0  # a thread that does not block SIGCHLD may have taken the child's
_SI_KERNEL = 0x80  # <asm-generic/siginfo.h>: sent by the kernel, as a terminal's ctrl-C is


@contextmanager
def signals_blocked() -> Iterator[frozenset[signal.Signals]]:
    """Hold back the signals that `wait_for` passes on, so that none comes between two lines.

    Children and threads that start meanwhile inherit this; a child must unblock them itself
    (core/process/parent_death.py and torchrun.py do). No thread may be there already: one that
    does not hold them back, such as NumPy's, could take a signal from the one that waits, and it
    would end this process. What the user's shell ignores (nohup) stays ignored. What comes after
    the child's end is dropped: all that is left is to write down how it ended.
    """
    held = frozenset(
        wanted
        for wanted in (*STOP_SIGNALS, *_FORWARDED)
        if signal.getsignal(wanted) is not signal.SIG_IGN
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*held, signal.SIGCHLD})
    try:
        yield held
    finally:
        while signal.sigtimedwait({*held, signal.SIGCHLD}, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait_for(
    child: subprocess.Popen[bytes],
    held: frozenset[signal.Signals],
    *,
    own_session: bool,
    grace_s: Callable[[], float | None] | None = None,
    resized: Callable[[], None] = lambda: None,
    one_ended: Callable[[], None] = lambda: None,
) -> int:
    """Wait until `child` ended, passing signals on to it; return its code, -n for signal n.

    With `grace_s`, the child has so many seconds after the first signal that asks it to stop; then,
    or at a second ctrl-C, it is killed. Without, it takes the time it wants, as without us.

    Args:
        child: Started in this thread while signals were held.
        held: What `signals_blocked` gave.
        own_session: The child leads a session of its own, which is what is killed. Otherwise it
            shares the terminal, unless it has left our group of processes.
        grace_s: Asked when such a signal comes, until it says how long; None: any time.
        resized: Called when the terminal's size has changed, before the child is told.
        one_ended: Called when a child of this process has ended, maybe another one, or may have.
    """
    deadline: float | None = None
    while child.poll() is None:
        left_s = _LONGEST_WAIT_S if deadline is None else max(0.0, deadline - time.monotonic())
        caught = signal.sigtimedwait({*held, signal.SIGCHLD}, min(left_s, _LONGEST_WAIT_S))
        if caught is None:
            if deadline is not None and time.monotonic() >= deadline:
                _kill(child, own_session=own_session)
                deadline = None
            one_ended()
        elif caught.si_signo == signal.SIGINT and deadline is not None:
            _kill(child, own_session=own_session)
        elif caught.si_signo == signal.SIGWINCH:
            resized()
            child.send_signal(signal.SIGWINCH)
        elif caught.si_signo == signal.SIGCHLD:
            one_ended()
        else:
            if caught.si_code != _SI_KERNEL or not _received_from_terminal(child, caught.si_signo):
                child.send_signal(caught.si_signo)
            if caught.si_signo in STOP_SIGNALS and grace_s is not None and deadline is None:
                may_take_s = grace_s()
                deadline = None if may_take_s is None else time.monotonic() + may_take_s
    return child.returncode


def _received_from_terminal(child: subprocess.Popen[bytes], number: int) -> bool:
    """Whether what the terminal sent us has come to the child too: ctrl-C goes to the group.

    A terminal that goes away tells the leader of its session alone.
    """
    if number == signal.SIGHUP and os.getsid(0) == os.getpid():
        return False
    try:
        return os.getpgid(child.pid) == os.getpgrp()
    except ProcessLookupError:  # it has ended
        return True


def exit_code_of(returncode: int) -> int:
    """Return a process's code as a shell tells it: signal n is 128 + n."""
    return returncode if returncode >= 0 else 128 - returncode


def was_killed(exit_code: int) -> bool:
    """Whether an exit code is of a rank that a signal ended which is not one to stop by."""
    return exit_code > 128 and exit_code - 128 not in STOP_SIGNALS


def _kill(child: subprocess.Popen[bytes], *, own_session: bool) -> None:
    if own_session:
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
