"""Leaving when asked to, also while torchrun waits for other hosts in code that hears no signal.

torchrun's ranks of this host may have ended before those of others; then it waits for those, up to
five minutes, in a call that lets no signal handler of Python's run.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from headrace.launch.channels.holding import holders
from headrace.launch.supervise import STOPPING, exit_code_of

_LOOK_EVERY_S = 0.05
_TIDY_S = 2.0  # in which torchrun, if it hears the signal, ends by itself


def leave_when_asked(
    besides: Callable[[], frozenset[int]],
    first: Callable[[], object],
    code: Callable[[int], int],
) -> None:
    """End this process by a signal that asks it to, once none of its children is left.

    Those that hold channels do not count either: they end with it.

    Args:
        besides: Returns the children that do not count.
        first: Called before the end.
        code: Returns the exit code for a signal's, as a shell tells it.
    """
    asked, wake = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(wake, False)
    # Written to by the signal's own handler, whatever the main thread is busy with.
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    threading.Thread(
        target=_watch, args=[asked, besides, first, code], name="leaving", daemon=True
    ).start()


def _watch(
    asked: int,
    besides: Callable[[], frozenset[int]],
    first: Callable[[], object],
    code: Callable[[int], int],
) -> None:
    while (number := os.read(asked, 1)[0]) not in STOPPING:
        pass
    alone_s = 0.0
    while alone_s < _TIDY_S:
        time.sleep(_LOOK_EVERY_S)
        alone_s = 0.0 if _has_children(besides()) else alone_s + _LOOK_EVERY_S
    first()
    os._exit(code(exit_code_of(-number)))


def _has_children(besides: frozenset[int]) -> bool:
    try:
        tasks = Path("/proc/self/task").iterdir()
        children = {int(pid) for task in tasks for pid in (task / "children").read_text().split()}
    except OSError:  # a thread that ends meanwhile, or a system without: torchrun decides
        return True
    return bool(children - besides - holders())
