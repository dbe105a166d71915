"""Threads of the probe, which a script does not see.

A script may join all threads that `threading.enumerate()` lists, or go on once it has only one. A
thread that lives as long as the process would let it wait for ever. So the probe's are started
below that module, which also keeps a script's `threading.settrace` out of them. They must not call
`threading.current_thread()`, which would list them.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable


class ProbeThread:
    """A thread that ends with the process at the latest."""

    def __init__(self) -> None:
        self._running = _thread.allocate_lock()
        self._identifier: int | None = None

    def start(self, run: Callable[[], object]) -> None:
        """Run a function, which raises nothing, in the thread; once.

        RuntimeError: the system has no room for a thread, or the process ends.
        """
        self._running.acquire(blocking=False)
        try:
            _thread.start_new_thread(self._call, (run,))
        except BaseException:
            self._running.release()
            raise

    def join(self, timeout: float) -> None:
        """Wait for its end, for so many seconds at most; the thread does not wait for itself."""
        is_other = self._identifier != _thread.get_ident()
        if is_other and self._running.acquire(timeout=timeout):
            self._running.release()

    def _call(self, run: Callable[[], object]) -> None:
        self._identifier = _thread.get_ident()
        try:
            run()
        finally:
            self._identifier = None  # which another thread may get
            self._running.release()
