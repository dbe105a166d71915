"""Leaving when asked to, also while torchrun waits for other hosts in code that hears no signal.

torchrun's ranks of this host may have ended before those of others; then it waits for those, up to
five minutes, in a call that lets no signal handler of Python's run.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from headrace.launch.supervise import STOPPING, exit_code_of

_LOOK_EVERY_S = 0.05
_TIDY_S = 2.0  # in which torchrun, if it hears the signal, ends by itself


def leave_when_asked() -> None:
    """End this process by a signal that asks it to, once none of its children is left."""
    asked, wake = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(wake, False)
    # Written to by the signal's own handler, whatever the main thread is busy with.
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=[asked], name="leaving", daemon=True).start()


def _watch(asked: int) -> None:
    while (number := os.read(asked, 1)[0]) not in STOPPING:
        pass
    alone_s = 0.0
    while alone_s < _TIDY_S:
        time.sleep(_LOOK_EVERY_S)
        alone_s = 0.0 if _has_children() else alone_s + _LOOK_EVERY_S
    os._exit(exit_code_of(-number))


def _has_children() -> bool:
    try:
        tasks = Path("/proc/self/task").iterdir()
        return any((task / "children").read_text() for task in tasks)
    except OSError:  # a thread that ends meanwhile, or a system without: torchrun decides
        return True
