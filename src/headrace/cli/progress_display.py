"""The progress of work on datasets, shown also where it reports nothing; ctrl-C ends at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from headrace.cli.progress_view import ProgressView
from headrace.data.shards.reports import PackProgress


@contextmanager
def interrupt_callback(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` in another thread as soon as ctrl-C comes; use it only in the main thread.

    Python handles a signal when its main thread next runs. A signal just before that thread waits,
    for a store that does not answer, say, would be handled only after the wait.
    """
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)

    def watch() -> None:
        while numbers := os.read(read_fd, 64):
            if signal.SIGINT in numbers:
                act()
        os.close(read_fd)

    before = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    threading.Thread(target=watch, name="headrace-ctrl-c", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(write_fd)


class ProgressDisplay:
    """The progress display on standard error: a context manager, called with each report.

    Work that takes at most `silent_s` shows nothing; `advice` ends the message on ctrl-C.
    """

    def __init__(self, silent_s: float = 2.0, *, advice: str = "") -> None:
        self._advice = f" {advice}" if advice else ""
        self._view = ProgressView(silent_s, time.monotonic())
        self._latest = PackProgress(stage="starting")
        self._is_ended = False
        self._lock = threading.Lock()
        # Work that reports nothing for a while is also shown.
        self._timer = threading.Timer(silent_s, lambda: self(self._latest))
        self._timer.daemon = True
        self._ctrl_c = interrupt_callback(self._interrupted)

    def __enter__(self) -> Self:
        self._timer.start()
        self._ctrl_c.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is KeyboardInterrupt:
            self._interrupted()
        self._timer.cancel()
        with self._lock:
            self._end()
        self._ctrl_c.__exit__(kind, error, trace)

    def __call__(self, progress: PackProgress) -> None:
        """Show the progress of the work."""
        with self._lock:
            if not self._is_ended:
                self._latest = progress
                self._view.show(progress, time.monotonic())

    def _end(self) -> None:
        self._is_ended = True
        self._view.end()

    def _interrupted(self) -> None:
        with self._lock:  # never released: one message, and nothing shown after it
            self._end()
            sys.stderr.write(f"headrace: interrupted.{self._advice}\n")
            sys.stderr.flush()
            # At once: an orderly exit would join threads that wait for a slow store.
            os._exit(130)
