"""The progress of work on datasets: a bar on a terminal, lines elsewhere; ctrl-C ends at once."""

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

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from headrace.core.units import format_bytes, format_seconds
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


_LINE_EVERY_S = 10.0


class ProgressDisplay:
    """The progress display on standard error: a context manager, called with each report.

    Work that takes at most `silent_s` shows nothing; `advice` ends the message on ctrl-C.
    """

    def __init__(self, silent_s: float = 2.0, *, advice: str = "") -> None:
        self._advice = f" {advice}" if advice else ""
        self._console = Console(stderr=True)
        self._silent_s = silent_s
        self._start_s = time.monotonic()
        self._stage = ""
        self._first = (self._start_s, 0, 0)  # the stage's first samples: time, samples, bytes
        self._next_line_s = self._start_s + silent_s
        self._bar: Progress | None = None
        self._latest = PackProgress(stage="starting")
        self._is_ended = False
        self._lock = threading.Lock()
        # Work that reports nothing for a while is also shown.
        self._timer = threading.Timer(silent_s, lambda: self(self._latest))
        self._timer.daemon = True
        self._task = TaskID(0)
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
                self._show(progress, time.monotonic())

    def _end(self) -> None:
        self._is_ended = True
        if self._bar is not None:
            self._bar.stop()

    def _interrupted(self) -> None:
        with self._lock:  # never released: one message, and nothing shown after it
            self._end()
            sys.stderr.write(f"headrace: interrupted.{self._advice}\n")
            sys.stderr.flush()
            # At once: an orderly exit would join threads that wait for a slow store.
            os._exit(130)

    def _show(self, progress: PackProgress, now: float) -> None:
        if progress.stage != self._stage or self._first[1] <= progress.resumed:
            self._stage = progress.stage
            self._first = (now, progress.samples, progress.read_bytes)
        if now - self._start_s < self._silent_s:
            return
        if self._console.is_terminal:
            self._show_bar(progress, now)
        elif now >= self._next_line_s:
            self._next_line_s = now + _LINE_EVERY_S
            numbers = ", ".join(self._numbers(progress, now)) or "begun"
            sys.stderr.write(f"{progress.stage}: {numbers}\n")
            sys.stderr.flush()

    def _show_bar(self, progress: PackProgress, now: float) -> None:
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[numbers]}"),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task(progress.stage, numbers="")
            self._bar.start()
        self._bar.update(
            self._task,
            description=progress.stage,
            completed=progress.samples,
            total=progress.of_samples or None,
            numbers=", ".join(self._numbers(progress, now)),
        )

    def _numbers(self, progress: PackProgress, now: float) -> list[str]:
        # Workers take a moment to start, so the rate is measured from the first samples on.
        elapsed_s = max(now - self._first[0], 1e-3)
        rate = (progress.samples - self._first[1]) / elapsed_s
        numbers = []
        if progress.of_samples:
            numbers.append(f"{progress.samples:,}/{progress.of_samples:,}")
        elif progress.samples:
            what = "files" if progress.stage == "listing" else "samples"
            numbers.append(f"{progress.samples:,} {what}")
        read_bytes = progress.read_bytes - self._first[2]
        if rate > 0:
            numbers.append(f"{rate:.0f}/s")
        if read_bytes > 0:
            numbers.append(f"{format_bytes(read_bytes / elapsed_s)}/s")
        if rate > 0 and progress.of_samples:
            left_s = (progress.of_samples - progress.samples) / rate
            numbers.append(f"{format_seconds(round(left_s))} left")
        if progress.bad:
            numbers.append(f"{progress.bad} bad")
        return numbers
