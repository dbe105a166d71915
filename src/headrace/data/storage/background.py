"""One event loop a process, in a thread of its own, on which all requests run."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Background:
    """The loop's thread; made at the first request, and anew in another process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="headrace-storage", daemon=True)
        self.thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """End all requests and the thread: at exit the client must not call into a dying Python."""
        if self.pid == os.getpid() and self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(timeout=5)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


_lock = threading.Lock()
_current: list[_Background] = []


def submit(work: Coroutine[Any, Any, _T]) -> Future[_T]:
    """Start `work` on the background loop."""
    return asyncio.run_coroutine_threadsafe(work, background_loop())


def background_loop() -> asyncio.AbstractEventLoop:
    """Return the running background loop of this process."""
    with _lock:
        if not _current or _current[0].pid != os.getpid():
            _current[:] = [_Background()]
        return _current[0].loop


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603  (another thread may have held it at the fork)
    _lock = threading.Lock()
    _current.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
