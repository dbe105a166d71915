"""The longest time that a job may take: once it is over, the job is asked to stop."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

from headrace.core.errors import LaunchError
from headrace.core.units import format_seconds
from headrace.launch.told import tell
from headrace.records.run_folder import RunFolder

TOO_LONG = "MaxRuntimeExceeded"
"""What a run says of its end then, as SageMaker calls it."""


class RunLimit:
    """Counts from now on, in a thread; `headrace run` gets SIGTERM, and passes it on.

    Args:
        limit_s: The longest time, in seconds; None: any.
        launcher: The pid of `headrace run`.
        folder: The run's.
        attempt: The attempt's number.

    Attributes:
        is_over: Whether the job took too long.
        is_passed_on: Whether that signal reaches the script; before, as channels are copied, it
            ends the launcher itself, so the end is written down here.
    """

    def __init__(
        self, limit_s: float | None, *, launcher: int, folder: RunFolder, attempt: int,
        is_passed_on: bool = True,
    ) -> None:  # fmt: skip
        self.is_over = False
        self.is_passed_on = is_passed_on
        self._limit_s = limit_s or 0.0
        self._launcher = launcher
        self._folder = folder
        self._attempt = attempt
        self._timer: threading.Timer | None = None
        if limit_s is not None:
            self._timer = threading.Timer(limit_s, self._end)
            self._timer.daemon = True
            # It inherits this: a signal to the launcher is for the thread that waits for one.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                self._timer.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def cancel(self) -> None:
        """Count no more: the job has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self.is_over = True
        tell(
            f"headrace: --max-run: {format_seconds(self._limit_s)} are over, and the job is asked "
            "to stop\n"
        )
        with suppress(OSError, LaunchError):  # a full disk must not keep the job running
            self._folder.note_reason(self._attempt, TOO_LONG)
            if not self.is_passed_on:
                self._folder.end_attempt(self._attempt, 128 + signal.SIGTERM)
        os.kill(self._launcher, signal.SIGTERM)
