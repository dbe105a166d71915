"""Channels that a script reads from named pipes while the job runs: modes Pipe and Stream."""

from __future__ import annotations

import os
import signal
import threading

from headrace.data.copies.request import SERVE, CopyRequest
from headrace.launch.channels.beside import Beside

_END_S = 5.0
_GONE = (
    "The process that writes channels to their pipes was killed, often for want of memory; what "
    "the script read from them may have ended early."
)


class Piped:
    """Such channels of one host.

    Where one fails while the script runs, this process gets SIGTERM, and passes it on: the script
    may be waiting for a pipe that nobody writes to any more.

    Args:
        request: Which ones, and in which folder their pipes are to lie.
    """

    def __init__(self, request: CopyRequest) -> None:
        self._beside = Beside("headrace.data.pipes.process", request)
        self._failure: str | None = None
        self._is_over = threading.Event()

    def look(self) -> None:
        """Look what there is, and whether it may be read; see `Beside.start_and_wait`."""
        self._beside.start_and_wait()

    def serve(self) -> None:
        """Have the pipes be made, as their folder is there by now; raises LaunchError."""
        self._beside.tell(SERVE)
        self._beside.answer()
        threading.Thread(target=self._watch, name="headrace-pipes", daemon=True).start()

    def failure(self) -> str | None:
        """Return why a pipe could not be written to its end; None: none was so."""
        return self._failure

    def end(self, exit_code: int) -> None:
        """Take the writer away; who still reads sees the end of the pipe."""
        del exit_code
        self._is_over.set()
        self._beside.end(_END_S)

    def _watch(self) -> None:
        # Signals are for the thread that waits for the script: see `signals_held`.
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        news = self._beside.news()
        if not self._is_over.is_set():
            self._failure = _GONE if news is None else news.message
            os.kill(os.getpid(), signal.SIGTERM)
