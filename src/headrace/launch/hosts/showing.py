"""What hosts say, shown by a thread: a terminal that stands still holds up nothing else."""

from __future__ import annotations

import queue
import sys
import threading
from typing import BinaryIO

_MOST_PIECES = 4096  # of output that a terminal that stands still has not taken yet
_END_S = 5.0


class Shown:
    """Shows pieces of output in their order; what a terminal does not take, logs alone have."""

    def __init__(self) -> None:
        self._terminals: dict[str, BinaryIO] = {
            "stdout": sys.stdout.buffer,
            "stderr": sys.stderr.buffer,
        }
        self._pieces: queue.Queue[tuple[str, bytes] | None] = queue.Queue(_MOST_PIECES)
        self._lost = False
        self._thread = threading.Thread(target=self._run, name="show output", daemon=True)
        self._thread.start()

    def show(self, source: str, text: bytes) -> None:
        """Show a piece, as soon as those before it are shown."""
        try:
            self._pieces.put_nowait((source, text))
            if self._lost:
                self._lost = False
                self._pieces.put_nowait(("stderr", b"headrace: some output is in the logs alone\n"))
        except queue.Full:
            self._lost = True

    def close(self) -> None:
        """Show what is left, unless nobody takes it."""
        try:
            self._pieces.put(None, timeout=_END_S)
        except queue.Full:
            return
        self._thread.join(_END_S)

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            source, text = piece
            terminal = self._terminals.get(source)
            if terminal is None:
                continue
            try:
                terminal.write(text)
                terminal.flush()
            except (OSError, ValueError):  # nobody reads any more: the logs have it
                del self._terminals[source]
