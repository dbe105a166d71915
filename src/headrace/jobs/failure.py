"""The failures of a job: the first failed rank, its last traceback, and the time limit."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.core.console import print_status
from headrace.core.errors import LaunchError
from headrace.core.process.supervision import exit_code_of, start_without_signals
from headrace.core.units import format_seconds
from headrace.records.run_folder import RunFolder

_TRACEBACK = "Traceback (most recent call last):"
# How Python joins the tracebacks of an exception and its cause.
_CHAINS = ("direct cause of the following exception:", "another exception occurred:")
_TORCHS_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # of each traceback line
# How Python's faulthandler begins, and its part about the thread that caused the signal.
_FATAL_ERROR = re.compile(r"^Fatal Python error: .*$", re.MULTILINE)
_CURRENT_THREAD = re.compile(r"^Current thread .*\n(?: .*\n?)*", re.MULTILINE)
_LINES_BEFORE_FATAL = 3  # what native code itself prints, such as an exception of C++
_EXCERPT_BYTES = 64 * 1024
_EXCERPT_LINES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """The failure of one rank."""

    rank: int
    returncode: int  # its return code; -n where signal n ended it
    seen_s: float  # when torchrun saw it, in seconds since 1970; torchrun notes whole seconds
    # When its stderr was last written to, in seconds since 1970; 0: unknown
    last_words_s: float = 0.0


def first_failure(failures: Sequence[RankFailure]) -> RankFailure:
    """Return the failure that caused the others.

    torchrun polls every 0.1 s and notes whole seconds, so ranks that fail because of another may be
    seen at the same time. Among those seen first, ranks that torchrun itself stopped (SIGTERM) are
    left out if there are others; of the rest, the one whose stderr ended first is returned, because
    a rank writes its traceback after the one that caused its failure. All times are of one clock.
    """
    first_s = min(failure.seen_s for failure in failures)
    together = [failure for failure in failures if failure.seen_s <= first_s + 1]
    own = [failure for failure in together if failure.returncode != -signal.SIGTERM]
    return min(own or together, key=lambda failure: (failure.last_words_s, failure.seen_s))


_MAX_REPORTS = 64  # about a minute's, to follow a clock that drifts or is set


class ClockOffset:
    """The offset of this host's clock against another host's, from that host's reports."""

    def __init__(self) -> None:
        self._ahead_s: deque[float] = deque(maxlen=_MAX_REPORTS)

    def add(self, sent_s: float, now_s: float) -> None:
        """Add a report: the other host's clock as it was sent, and this host's as it arrived."""
        self._ahead_s.append(now_s - sent_s)

    def to_local(self, failure: RankFailure) -> RankFailure:
        """Return another host's failure with its times converted to this host's clock."""
        # The report with the smallest delay gives the best estimate.
        ahead_s = min(self._ahead_s, default=0.0)
        last_s = failure.last_words_s + ahead_s if failure.last_words_s else 0.0
        return replace(failure, seen_s=failure.seen_s + ahead_s, last_words_s=last_s)


def describe_exit(returncode: int, *, had_to_stop: bool = False) -> str:
    """Return how a process ended, as text: "exit code 3", "killed by SIGKILL ...".

    `had_to_stop`: we killed it, after its grace period or at a second ctrl-C.
    """
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    hint = ""
    if returncode == -signal.SIGKILL:
        hint = (
            ", as it had not stopped when asked to" if had_to_stop else ", often for want of memory"
        )
    return f"killed by {name}{hint} (exit code {exit_code_of(returncode)})"


def last_traceback(log: Path, begin: int = 0) -> str:
    """Return the last traceback in a log, or its last lines; "" where there is no log.

    Of a crash in native code it is that of the thread that crashed, as faulthandler wrote it. What
    stands before the offset `begin` does not count.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(begin, log.stat().st_size - _EXCERPT_BYTES))
            text = _TORCHS_PREFIX.sub("", file.read().decode(errors="replace"))
    except FileNotFoundError:
        return ""
    start = _traceback_offset(text)
    fatal = _fatal_error(text, start or 0)
    if start is None and fatal is None:
        return "\n".join(text.rstrip().splitlines()[-10:])
    lines = (fatal or text[start:]).rstrip().splitlines()
    if len(lines) > _EXCERPT_LINES:
        half = _EXCERPT_LINES // 2
        lines = [*lines[:half], f"  ... {len(lines) - 2 * half} lines ...", *lines[-half:]]
    return "\n".join(lines)


def failure_message(
    failure: RankFailure, *, total: int, log: Path | None, traceback: str | None = None
) -> str:
    """Return the message at the end of a failed run; `log` is the failed rank's stderr, if there.

    Without a traceback that the rank itself recorded, it has the last one in the log.
    """
    which = f"rank {failure.rank} failed first" if total > 1 else f"rank {failure.rank} failed"
    head = f"headrace: {which}: {describe_exit(failure.returncode)}"
    excerpt = traceback or (last_traceback(log) if log else "")
    tail = f"headrace: its whole log: {log}" if log else ""
    lost = _DISK_IS_FULL if log and _is_disk_full(log) else ""
    return "\n".join(part for part in (head, excerpt.rstrip(), lost, tail) if part) + "\n"


_FULL_BYTES = 64 * 1024  # less than that: a few lines of a log
_DISK_IS_FULL = (
    "headrace: the disk of its log is full: what a rank prints fails there, and may have ended it. "
    "Make room, or take another folder with --runs-dir."
)


def _is_disk_full(log: Path) -> bool:
    try:
        status = os.statvfs(log.parent)
    except OSError:
        return False
    blocks = status.f_bavail if os.geteuid() else status.f_bfree  # some are kept for root
    return blocks * status.f_frsize < _FULL_BYTES


_RESTART = re.compile(r"restart-(\d+)")
_CRASH = re.compile(f"^({re.escape(_TRACEBACK)}|Fatal Python error: )", re.MULTILINE)


def first_failed_log(logs: Path) -> Path:
    """Return the log of the rank of an attempt that failed first, as far as its logs tell.

    Of the last start of the ranks that is the one with a traceback that ended first: the others
    fail, or are stopped, because of it. Without any it is that of the first rank that says
    something.
    """
    found = sorted(logs.rglob("*.stderr"), key=_rank_of)
    last = max(map(_start_of, found), default=0)
    ends = {log: last_traceback(log) for log in found if _start_of(log) == last}
    crashed = [log for log, text in ends.items() if _CRASH.search(text)]
    if crashed:
        return min(crashed, key=last_write_s)
    said = (log for log, text in ends.items() if text.strip())
    return next(said, next(iter(ends), logs / "rank-0.stderr"))


def _rank_of(log: Path) -> tuple[int, str]:
    """Return the number at the end of a log's name, to sort logs by: rank 2 before rank 10."""
    digits = re.search(r"[0-9]+$", log.stem)
    return int(digits[0]) if digits else 0, log.name


def _start_of(log: Path) -> int:
    """Return the number of the restart of ranks that a log is of."""
    restart = _RESTART.fullmatch(log.parent.name)
    return int(restart[1]) if restart else 0


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


def _fatal_error(text: str, after: int) -> str | None:
    """Return the last fatal error that Python wrote beyond an offset, if it did."""
    found = list(_FATAL_ERROR.finditer(text, after))
    if not found:
        return None
    before = text[after : found[-1].start()].splitlines()[-_LINES_BEFORE_FATAL:]
    thread = _CURRENT_THREAD.search(text, found[-1].end())
    return "\n".join([*before, found[-1].group(), thread.group() if thread else ""])


TIME_LIMIT_REASON = "MaxRuntimeExceeded"
"""The recorded reason of a run that was stopped by its time limit, as SageMaker names it."""


class TimeLimit:
    """The time limit of an attempt: a timer that sends SIGTERM to `headrace run`, the launcher.

    `is_passed_on` says whether the launcher passes the signal on to the script. Before, while it
    copies channels, the signal ends the launcher itself, so the end is recorded here.
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
            start_without_signals(self._timer)

    def cancel(self) -> None:
        """Stop the timer: the job has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self.is_over = True
        print_status(
            f"--max-run: {format_seconds(self._limit_s)} are over, and the job is asked to stop"
        )
        with suppress(OSError, LaunchError):  # a full disk must not keep the job running
            self._folder.note_reason(self._attempt, TIME_LIMIT_REASON)
            if not self.is_passed_on:
                self._folder.end_attempt(self._attempt, 128 + signal.SIGTERM)
        os.kill(self._launcher, signal.SIGTERM)
