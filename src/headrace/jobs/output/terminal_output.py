"""The output on the terminal: log files followed as they grow, and the output of hosts."""

from __future__ import annotations

import queue
import re
import sys
import threading
from pathlib import Path
from typing import BinaryIO

_POLL_S = 0.1
# \r ends the lines of progress bars; a \r at the end may be half of a \r\n.
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r(?=[^\n])|\n)")


class LogFollower:
    """A thread that shows log files line by line, with a prefix that names their origin.

    It reads all files every 0.1 s; lines of different files never mix.
    """

    def __init__(self) -> None:
        self._files: list[_FollowedFile] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follow logs", daemon=True)
        self._thread.start()

    def follow(self, path: Path, prefix: str, terminal: BinaryIO) -> None:
        """Show a file from its first byte on, as soon as it exists."""
        with self._lock:
            self._files.append(_FollowedFile(path, prefix.encode(), terminal))

    def finish_files(self) -> None:
        """Show the rest of the files followed so far, and forget them."""
        with self._lock:
            for file in self._files:
                file.show(to_the_end=True)
            self._files.clear()

    def close(self) -> None:
        """Show the rest of all files, and stop."""
        self._closing.set()
        self._thread.join()
        self.finish_files()

    def _run(self) -> None:
        while not self._closing.wait(_POLL_S):
            with self._lock:
                for file in self._files:
                    file.show()


class _FollowedFile:
    def __init__(self, path: Path, prefix: bytes, terminal: BinaryIO) -> None:
        self._path = path
        self._prefix = prefix
        self._terminal: BinaryIO | None = terminal
        self._file: BinaryIO | None = None
        self._partial_line = b""  # the beginning of a line that has not ended

    def show(self, *, to_the_end: bool = False) -> None:
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except FileNotFoundError:  # torchrun creates it when it starts the rank
                return
        text = self._partial_line + self._file.read()
        if to_the_end:
            self._file.close()
            text += b"\n" if text and self._prefix and text[-1:] != b"\n" else b""
        if self._prefix:
            lines = _LINE.findall(text)
            self._partial_line = text[sum(map(len, lines)) :]
            text = b"".join(self._prefix + line for line in lines)
        else:
            self._partial_line = b""
        self._write(text)

    def _write(self, text: bytes) -> None:
        if not text or self._terminal is None:
            return
        try:
            self._terminal.write(text)
            self._terminal.flush()
        except (OSError, ValueError):  # the reader is gone, or its disk full: see the log
            self._terminal = None


_MAX_QUEUED_PIECES = 4096  # pieces of output that a blocked terminal has not taken yet
_CLOSE_S = 5.0


class HostOutput:
    """The output of hosts, shown in order; what the terminal does not take is only in the logs."""

    def __init__(self) -> None:
        self._terminals: dict[str, BinaryIO] = {
            "stdout": sys.stdout.buffer,
            "stderr": sys.stderr.buffer,
        }
        self._pieces: queue.Queue[tuple[str, bytes] | None] = queue.Queue(_MAX_QUEUED_PIECES)
        self._has_dropped = False
        self._thread = threading.Thread(target=self._run, name="show output", daemon=True)
        self._thread.start()

    def show(self, source: str, text: bytes) -> None:
        """Show a piece of output after those before it."""
        try:
            self._pieces.put_nowait((source, text))
            if self._has_dropped:
                self._has_dropped = False
                self._pieces.put_nowait(("stderr", b"headrace: some output is in the logs alone\n"))
        except queue.Full:
            self._has_dropped = True

    def close(self) -> None:
        """Show the remaining output, within a time limit."""
        try:
            self._pieces.put(None, timeout=_CLOSE_S)
        except queue.Full:
            return
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            source, text = piece
            terminal = self._terminals.get(source)
            if terminal is None:
                continue
            try:
                terminal.write(text)
                terminal.flush()
            except (OSError, ValueError):  # the reader is gone: the logs have it
                del self._terminals[source]
