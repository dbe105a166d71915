"""Ctrl-C noticed at once, whatever the main thread waits for."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ctrl_c_noticed(act: Callable[[], None]) -> Iterator[None]:
    """Have `act` called, in another thread, as soon as ctrl-C comes; from the main thread alone.

    Python itself acts on a signal when its main thread runs again. One that comes just as that
    begins to wait, for a store that does not answer, would be noticed when the wait ends.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def watch() -> None:
        while numbers := os.read(reading, 64):
            if signal.SIGINT in numbers:
                act()
        os.close(reading)

    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=watch, name="headrace-ctrl-c", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)
