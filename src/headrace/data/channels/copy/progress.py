"""The counts and the progress of a copy."""

from __future__ import annotations

import sys
import threading
import time

from headrace.core.console import write_status
from headrace.core.units import format_bytes, format_seconds

_SILENT_S = 2.0  # shorter copies show no progress
_LINE_EVERY_S = 5.0
_REFRESH_EVERY_S = 0.2


class CopyCounts:
    """The counts of a copy; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.objects = 0  # that are complete
        self.size_bytes = 0  # theirs, and those of finished parts
        self.fetched = 0  # objects that came from the store
        self.fetched_bytes = 0

    def add(self, *, objects: int = 0, size_bytes: int = 0) -> None:
        """Count objects and bytes from the store."""
        with self._lock:
            self.fetched += objects
            self.fetched_bytes += size_bytes
        self.keep(objects=objects, size_bytes=size_bytes)

    def keep(self, *, objects: int = 0, size_bytes: int = 0) -> None:
        """Count objects and bytes that were here before."""
        with self._lock:
            self.objects += objects
            self.size_bytes += size_bytes


class CopyProgress(CopyCounts):
    """Shows the progress of a channel's copy, which has so many objects and bytes."""

    def __init__(self, name: str, objects: int, size_bytes: int) -> None:
        super().__init__()
        self._name = name
        self._of_objects = objects
        self._of_bytes = size_bytes
        self._began_s = time.monotonic()
        self._next_s = self._began_s + _SILENT_S
        self._on_terminal = sys.stderr.isatty()
        self._line_shown = False

    def show(self) -> None:
        """Show the progress, every 5 s, or every 0.2 s on a terminal."""
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + (_REFRESH_EVERY_S if self._on_terminal else _LINE_EVERY_S)
        self._write(self._line(now))

    def end(self, source: str) -> None:
        """Show what was copied, and how fast."""
        elapsed_s = time.monotonic() - self._began_s
        size = format_bytes(self._of_bytes)
        count = "1 object" if self._of_objects == 1 else f"{self._of_objects:,} objects"
        text = f"headrace: channel {self._name}: {count}, {size}, of {source}"
        if not self.fetched:
            self._last(f"{text}: here already\n")
            return
        rate = format_bytes(self.fetched_bytes / max(elapsed_s, 1e-3))
        reused = self._of_objects - self.fetched
        before = f"; {reused:,} were here already" if reused else ""
        self._last(f"{text}: copied in {format_seconds(elapsed_s)} ({rate}/s{before})\n")

    def _line(self, now: float) -> str:
        elapsed_s = now - self._began_s
        rate = self.fetched_bytes / elapsed_s
        left = (self._of_bytes - self.size_bytes) / rate if rate else 0.0
        numbers = [
            f"{self.objects:,}/{self._of_objects:,} objects",
            f"{format_bytes(self.size_bytes)}/{format_bytes(self._of_bytes)}",
            f"{format_bytes(rate)}/s",
            f"{format_seconds(round(left))} left" if rate else "nothing has come yet",
        ]
        return f"headrace: channel {self._name}: {', '.join(numbers)}"

    def _write(self, line: str) -> None:
        if self._on_terminal:
            self._line_shown = True
            write_status(f"\r{line}\x1b[K")
        else:
            write_status(f"{line}\n")

    def _last(self, line: str) -> None:
        write_status(f"\r\x1b[K{line}" if self._line_shown else line)
