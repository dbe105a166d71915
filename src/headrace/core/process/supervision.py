"""The wait for one child: forwards signals, kills it after a grace period, returns its code."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
DEFAULT_GRACE_S = 30.0
"""Grace period where a job has to end and the user has set none."""
_FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
_LONGEST_WAIT_S = 1.0  # a thread that does not block SIGCHLD may have taken the child's
_SI_KERNEL = 0x80  # <asm-generic/siginfo.h>: sent by the kernel, as a terminal's ctrl-C is


class StoppedError(Exception):
    """This process got a stop signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def pause(blocked: AbstractSet[signal.Signals], seconds: float) -> None:
    """Wait for a blocked signal, some seconds at most; raises StoppedError on a stop signal."""
    caught = signal.sigtimedwait(blocked, seconds)
    if caught is not None and caught.si_signo in STOP_SIGNALS:
        raise StoppedError(caught.si_signo)


@contextmanager
def signals_blocked() -> Iterator[frozenset[signal.Signals]]:
    """Block the signals that `wait_for` forwards, so that none interrupts other code; yield them.

    Children and threads inherit the mask; a child must unblock the signals itself (parent_death.py
    and torchrun.py do). No other thread may exist already: one that does not block them, such as
    NumPy's, would receive them and end this process. Signals that the user's shell ignores (nohup)
    stay ignored. Signals after the child's end are dropped, as only its result is left to record.
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


def start_without_signals(thread: threading.Thread) -> None:
    """Start a thread that gets no signals: they are for the main thread, which waits for them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()  # it inherits this mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait_for(
    child: subprocess.Popen[bytes],
    held: frozenset[signal.Signals],
    *,
    own_session: bool,
    kill_signal: signal.Signals | None = None,
    killed_by: signal.Signals = signal.SIGKILL,
    killing: Callable[[], object] = lambda: None,
    grace_s: Callable[[], float | None] | None = None,
    resized: Callable[[], None] = lambda: None,
    one_ended: Callable[[], None] = lambda: None,
) -> int:
    """Wait until `child` has ended, forwarding signals; return its code, -n for signal n.

    With `grace_s`, the child is killed that long after the first stop signal, or at a second
    ctrl-C. Without, it may take any time.

    Args:
        child: Started in this thread while signals were blocked.
        held: The signals of `signals_blocked`.
        own_session: The child leads its own session, which is killed with it. Else it shares the
            terminal, unless it has left our process group.
        kill_signal: A blocked signal of this process at which the child is killed, too.
        killed_by: What kills it; a `subreaper` kills its command first.
        killing: Called before it is killed.
        grace_s: Called at stop signals until it returns a grace period; None: no limit.
        resized: Called when the terminal's size has changed, before the child is signalled.
        one_ended: Called when a child of this process has ended, maybe another one, or may have.
    """
    deadline: float | None = None
    waited = {*held, signal.SIGCHLD, *([kill_signal] if kill_signal is not None else [])}
    while child.poll() is None:
        left_s = _LONGEST_WAIT_S if deadline is None else max(0.0, deadline - time.monotonic())
        caught = signal.sigtimedwait(waited, min(left_s, _LONGEST_WAIT_S))
        if caught is None:
            if deadline is not None and time.monotonic() >= deadline:
                killing()
                _kill(child, killed_by, own_session=own_session)
                deadline = None
            one_ended()
        elif caught.si_signo == kill_signal or (
            caught.si_signo == signal.SIGINT and deadline is not None
        ):
            killing()
            _kill(child, killed_by, own_session=own_session)
        elif caught.si_signo == signal.SIGWINCH:
            resized()
            child.send_signal(signal.SIGWINCH)
        elif caught.si_signo == signal.SIGCHLD:
            one_ended()
        else:
            if caught.si_code != _SI_KERNEL or not _received_from_terminal(child, caught.si_signo):
                child.send_signal(caught.si_signo)
            if caught.si_signo in STOP_SIGNALS and grace_s is not None and deadline is None:
                grace = grace_s()
                deadline = None if grace is None else time.monotonic() + grace
    return child.returncode


def _received_from_terminal(child: subprocess.Popen[bytes], number: int) -> bool:
    """Whether the child also got a signal of the terminal, as ctrl-C goes to the process group.

    A terminal's hangup goes to the session's leader alone.
    """
    if number == signal.SIGHUP and os.getsid(0) == os.getpid():
        return False
    try:
        return os.getpgid(child.pid) == os.getpgrp()
    except ProcessLookupError:  # it has ended
        return True


def exit_code_of(returncode: int) -> int:
    """Return a process's exit code in a shell's convention: 128 + n for signal n."""
    return returncode if returncode >= 0 else 128 - returncode


def was_killed(exit_code: int) -> bool:
    """Whether an exit code is that of a rank ended by a signal that is no stop signal."""
    return exit_code > 128 and exit_code - 128 not in STOP_SIGNALS


def _kill(child: subprocess.Popen[bytes], by: signal.Signals, *, own_session: bool) -> None:
    if own_session:
        os.killpg(child.pid, by)
    else:
        child.send_signal(by)
