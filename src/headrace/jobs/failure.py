"""Failures of a job: the first rank that failed, its last traceback, and the time limit."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.core.console import print_status
from headrace.core.errors import LaunchError
from headrace.core.process.supervision import exit_code_of
from headrace.core.units import format_seconds
from headrace.records.run_folder import RunFolder

_TRACEBACK = "Traceback (most recent call last):"
# How Python joins the tracebacks of an exception and of what caused it.
_CHAINS = ("direct cause of the following exception:", "another exception occurred:")
_TORCHS_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # of tracebacks, in each line
_EXCERPT_BYTES = 64 * 1024
_EXCERPT_LINES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """How one rank ended that did not end well.

    Attributes:
        rank: The global rank.
        returncode: Its code; -n where signal n ended it.
        seen_s: When torchrun saw it, in seconds since 1970; it notes whole ones.
        last_words_s: When its stderr was last written to, in seconds since 1970; 0 if unknown.
    """

    rank: int
    returncode: int
    seen_s: float
    last_words_s: float = 0.0


def first_failure(failures: Sequence[RankFailure]) -> RankFailure:
    """Return the failure that the others followed from.

    torchrun looks every 0.1 s and notes whole seconds, so ranks that fall over because another
    did may be seen along with it. Of those seen first, the ones that torchrun itself stopped
    (SIGTERM) are left out where there are others, and of the rest the first to fall silent is
    taken: a follower writes its traceback after the cause did. All times are by one clock.
    """
    first_s = min(failure.seen_s for failure in failures)
    together = [failure for failure in failures if failure.seen_s <= first_s + 1]
    own = [failure for failure in together if failure.returncode != -signal.SIGTERM]
    return min(own or together, key=lambda failure: (failure.last_words_s, failure.seen_s))


def describe_exit(returncode: int) -> str:
    """Return how a process ended, in words: "exit code 3", "killed by SIGKILL ..."."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    hint = ", often for want of memory" if returncode == -signal.SIGKILL else ""
    return f"killed by {name}{hint} (exit code {exit_code_of(returncode)})"


def last_traceback(log: Path) -> str:
    """Return the last traceback in a log, or else its last lines; "" where there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _EXCERPT_BYTES))
            text = _TORCHS_PREFIX.sub("", file.read().decode(errors="replace"))
    except FileNotFoundError:
        return ""
    start = _traceback_offset(text)
    if start is None:
        return "\n".join(text.rstrip().splitlines()[-10:])
    lines = text[start:].rstrip().splitlines()
    if len(lines) > _EXCERPT_LINES:
        half = _EXCERPT_LINES // 2
        lines = [*lines[:half], f"  ... {len(lines) - 2 * half} lines ...", *lines[-half:]]
    return "\n".join(lines)


def failure_message(
    failure: RankFailure, *, total: int, log: Path | None, traceback: str | None = None
) -> str:
    """Return what is printed at the end of a failed run.

    Args:
        failure: The first one.
        total: How many ranks did not end well.
        log: Its stderr log, where there is one.
        traceback: As the rank itself recorded it; None takes the log's last one.
    """
    which = f"rank {failure.rank} failed first" if total > 1 else f"rank {failure.rank} failed"
    head = f"headrace: {which}: {describe_exit(failure.returncode)}"
    excerpt = traceback or (last_traceback(log) if log else "")
    tail = f"headrace: its whole log: {log}" if log else ""
    return "\n".join(part for part in (head, excerpt.rstrip(), tail) if part) + "\n"


def last_write_s(log: Path) -> float:
    """Return when a log was last written to, in seconds since 1970; 0 where there is none."""
    try:
        return log.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _traceback_offset(text: str) -> int | None:
    found = text.rfind(_TRACEBACK)
    while found >= 0 and text[:found].rstrip().endswith(_CHAINS):
        before = text.rfind(_TRACEBACK, 0, found)
        if before < 0:
            break
        found = before
    return text.rfind("\n", 0, found) + 1 if found >= 0 else None


TIME_LIMIT_REASON = "MaxRuntimeExceeded"
"""What a run says of its end then, as SageMaker calls it."""


class TimeLimit:
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
        print_status(
            f"headrace: --max-run: {format_seconds(self._limit_s)} are over, and the job is asked "
            "to stop\n"
        )
        with suppress(OSError, LaunchError):  # a full disk must not keep the job running
            self._folder.note_reason(self._attempt, TIME_LIMIT_REASON)
            if not self.is_passed_on:
                self._folder.end_attempt(self._attempt, 128 + signal.SIGTERM)
        os.kill(self._launcher, signal.SIGTERM)
