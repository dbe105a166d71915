"""A child's output: as it comes, to the terminal and into a log."""

from __future__ import annotations

import errno
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import IO, Protocol

from headrace.launch.supervise import STOPPING

_READ_BYTES = 64 * 1024
_AHEAD = 64  # reads that may be logged and not shown yet; more wait for the terminal
_LOOK_AGAIN_S = 0.1


class Terminal(Protocol):
    """Where bytes are shown: a raw file, so that no lock of Python's is held while it waits."""

    def write(self, data: memoryview, /) -> int | None:
        """Write some of the bytes; return how many."""
        ...


class Tee:
    """Copies one output stream of a child to the terminal and into a file, byte by byte.

    Args:
        source: The reading end of the child's stream.
        terminal: Where it is shown; where that fails, only the log goes on.
        log: The file, made anew.
    """

    def __init__(self, source: IO[bytes], terminal: Terminal, log: Path) -> None:
        self._source = source
        self._terminal: Terminal | None = terminal
        self._log = log.open("wb", buffering=0)
        self._unshown: Queue[bytes] = Queue(_AHEAD)
        self._shown = 0  # reads
        self._closing = False
        self._reader = _started(self._read, f"read {log.name}")
        _started(self._show, f"show {log.name}")

    def close(self, timeout_s: float = 2.0) -> None:
        """Wait for the stream's end, which a process the child left behind may hold open.

        Then until what came is shown, however long the terminal stands still (a pager, ctrl-S), or
        until a signal that is held back asks to stop.

        Args:
            timeout_s: For the stream's end.
        """
        deadline, shown = time.monotonic() + timeout_s, -1
        while self._reader.is_alive() and time.monotonic() < deadline:
            self._reader.join(_LOOK_AGAIN_S)
            if self._unshown.full() and self._shown == shown:  # the terminal stands still
                if _asked_to_stop():
                    break
                deadline = time.monotonic() + timeout_s
            shown = self._shown
        self._closing = True
        all_shown = _started(self._unshown.join, "all is shown")
        while all_shown.is_alive() and not _asked_to_stop():
            all_shown.join(_LOOK_AGAIN_S)

    def _read(self) -> None:
        with self._source, self._log:
            while chunk := self._next():
                with suppress(OSError):  # a full disk costs the log, never the run
                    self._log.write(chunk)
                if not self._closing:
                    self._unshown.put(chunk)
        self._unshown.put(b"")

    def _next(self) -> bytes:
        """Return what is there, so that a prompt or a bar appears at once; b"" at the end."""
        try:
            chunk: bytes = self._source.read1(_READ_BYTES)  # type: ignore[attr-defined]
        except OSError as error:
            if error.errno == errno.EIO:  # how a pseudo-terminal ends
                return b""
            raise
        return chunk

    def _show(self) -> None:
        while chunk := self._unshown.get():
            left = memoryview(chunk)
            while self._terminal is not None and left:
                try:
                    written = self._terminal.write(left)
                except (OSError, ValueError):  # nobody reads it any more, or its disk is full
                    self._terminal = None
                    break
                if written is None:  # somebody made it non-blocking, and it has no room
                    time.sleep(_LOOK_AGAIN_S)
                left = left[written or 0 :]
            self._shown += 1
            self._unshown.task_done()
        self._unshown.task_done()


def raw(stream: IO[bytes]) -> Terminal:
    """Return the file behind a buffered stream, such as `sys.stdout.buffer`."""
    terminal: Terminal = getattr(stream, "raw", stream)
    return terminal


def _asked_to_stop() -> bool:
    """Whether a signal that is held back asks for that."""
    return not STOPPING.isdisjoint(signal.sigpending())


def _started(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread
