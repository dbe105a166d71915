"""Processes that end when their parent does, whatever killed it."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def die_with_parent(parent_pid: int | None = None, by: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to kill this process when the thread that started it ends.

    The setting survives `exec` and is cleared by `fork`. Linux ties it to the parent's *thread*,
    so a parent starts such children from a thread that lives as long as it does.

    Args:
        parent_pid: The parent as the caller knew it; where this process has already another
            parent (the first died before this call), it ends at once.
        by: The signal that it gets.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(by), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent_pid is not None and os.getppid() != parent_pid:
        os.kill(os.getpid(), by)


def leave_signals_to_the_parent() -> None:
    """Stay where a whole process group is told to stop, or warned: the parent decides.

    It may want to save first, and needs this process for that; it ends it in any case. Programs
    that this process starts get such signals as usual, but for ctrl-C.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)
