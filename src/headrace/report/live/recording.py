"""How a running job is recorded, read and changed: on, off, deep for a while, the interval."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

from headrace.core.errors import HeadraceError, UsageError
from headrace.records.attempt_outcomes import is_of_another_host
from headrace.records.live_switch import LiveSwitch
from headrace.records.run_folder import Attempt, running_launcher
from headrace.records.running_switch import running_switch
from headrace.report.live.run_list import last_attempt, run_state, why_fixed

_LONGEST_DEEP_S = 600.0
_INTERVALS_S = (0.1, 60.0)
_FRESH_S = 1.0

RecordingNow = tuple[bool, bool, float, int]
"""Whether it is on and whether deep, its interval in s, and how often viewers changed it."""


def read_recording(path: Path, number: int | None = None) -> dict[str, Any]:
    """Return how an attempt of a run, or the last one, is recorded now, as JSON's own types.

    Of one whose recording cannot be changed from here, `why` says why, and what is recorded now
    is unknown.
    """
    if why := why_fixed(path, number):
        return {"running": False, "why": why, "stoppable": False, "resumable": False}
    attempt = last_attempt(path)
    running = run_state(path, attempt) == "running"
    may_go_on = attempt is None or running or is_of_another_host(attempt)
    state: dict[str, Any] = {
        "running": running,
        "why": "",
        "stoppable": attempt is not None and _may_be_stopped(path, attempt),
        "resumable": not may_go_on and os.access(path, os.W_OK),
    }
    try:
        switch = running_switch(path)
    except HeadraceError as error:
        return {**state, "why": str(error) if running else ""}
    return {
        **state, "recording": switch.on, "deep": switch.deep, "interval_s": switch.interval_s,
    }  # fmt: skip


class RecordingState:
    """How an attempt of a run, or the last one, is recorded, read once a second for all viewers."""

    def __init__(self, path: Path, attempt: int | None) -> None:
        self._path = path
        self._attempt = attempt
        self._read_s = -math.inf
        self._changes = 0
        self._state: RecordingNow | None = None

    def has_changed(self) -> None:
        """Take note that a viewer has changed it, which others see though it be changed back."""
        self._changes += 1
        self._read_s = -math.inf

    def read(self) -> RecordingNow | None:
        """Return how it is now; None: it cannot be changed from here."""
        if time.monotonic() - self._read_s > _FRESH_S:
            self._read_s = time.monotonic()
            try:
                self._state = self._read()
            except Exception:  # noqa: BLE001 - whatever stands in its files: its page says what
                self._state = None
        return self._state

    def _read(self) -> RecordingNow | None:
        if why_fixed(self._path, self._attempt):
            return None
        switch = running_switch(self._path)
        return switch.on, switch.deep, switch.interval_s, self._changes


def _may_be_stopped(path: Path, attempt: Attempt) -> bool:
    """Return whether an attempt's launcher runs on this host, and takes signals of this user."""
    is_over = attempt.exit_code is not None
    pid = None if is_over else running_launcher(path, attempt.launcher)
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except OSError:  # another user's, or it has just ended
        return False
    return True


def change_recording(path: Path, change: dict[str, Any]) -> dict[str, Any]:
    """Change how a running job is recorded, and return how it is then.

    Raises:
        UsageError: The change is none.
        RecordsError: The job is not running on this host, or its recording cannot be changed.
    """
    switch = running_switch(path)
    for name, value in change.items():
        _change(switch, name, value)
    return read_recording(path)


def _change(switch: LiveSwitch, name: str, value: object) -> None:
    number = _number(value)
    low_s, high_s = _INTERVALS_S
    if name == "recording" and isinstance(value, bool):
        switch.on = value
    elif name == "deep_s" and 0 <= number <= _LONGEST_DEEP_S:
        switch.on = True
        switch.go_deep(number)
    elif name == "interval_s" and low_s <= number <= high_s:
        switch.interval_s = number
    else:
        raise UsageError(
            f"{name!r} cannot be {value!r}: give recording (true or false), deep_s (0 to "
            f"{_LONGEST_DEEP_S:g}) or interval_s ({low_s:g} to {high_s:g})."
        )


def _number(value: object) -> float:
    """Return a number of a request as a float; NaN for anything else."""
    try:
        return float(value) if isinstance(value, int | float) else float("nan")
    except OverflowError:
        return float("nan")
