"""A child's output: as it comes, to the terminal and into a log."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, BinaryIO

_READ_BYTES = 64 * 1024


class Tee:
    """Copies one output stream of a child to the terminal and into a file, byte by byte.

    Args:
        source: The reading end of the child's stream.
        terminal: Where it is shown; where nobody reads it any more, only the log goes on.
        log: The file, made anew.
    """

    def __init__(self, source: IO[bytes], terminal: BinaryIO, log: Path) -> None:
        self._source = source
        self._terminal: BinaryIO | None = terminal
        self._log = log.open("wb", buffering=0)
        self._thread = threading.Thread(target=self._copy, name=f"tee {log.name}", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Wait for the stream's end, which a process the child left behind may hold open."""
        self._thread.join(timeout_s)

    def _copy(self) -> None:
        with self._source, self._log:
            # read1 returns what is there: a prompt or a progress bar appears at once.
            while chunk := self._source.read1(_READ_BYTES):  # type: ignore[attr-defined]
                with suppress(OSError):  # a full disk costs the log, never the run
                    self._log.write(chunk)
                self._show(chunk)

    def _show(self, chunk: bytes) -> None:
        if self._terminal is None:
            return
        try:
            self._terminal.write(chunk)
            self._terminal.flush()
        except (BrokenPipeError, ValueError):
            self._terminal = None
