"""How a running job is recorded, read and changed: on, off, deep for a while, the interval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.core.errors import RecordsError, UsageError
from headrace.records.live_switch import LiveSwitch
from headrace.records.reader import Records, recorded_attempts
from headrace.records.run_folder import running_pid
from headrace.report.live.run_list import last_attempt, run_state

_LONGEST_DEEP_S = 600.0
_NO_INTERVAL_S = 0.0  # nothing is recorded
_INTERVALS_S = (0.1, 60.0)


def read_recording(path: Path) -> dict[str, Any]:
    """Return how a run is recorded at this moment, as JSON's own types."""
    switch = _switch(path)
    attempt = last_attempt(path)
    running = run_state(path, attempt) == "running"
    return {
        "recording": switch is not None and switch.on,
        "deep": switch is not None and switch.deep,
        "interval_s": _NO_INTERVAL_S if switch is None else switch.interval_s,
        "stoppable": running,
        "resumable": attempt is not None and not running,
    }


def change_recording(path: Path, change: dict[str, Any]) -> dict[str, Any]:
    """Change how a running job is recorded, and return how it is then.

    Raises:
        UsageError: The change is none.
        RecordsError: The job is not running on this host.
    """
    switch = _switch(path)
    if switch is None:
        raise RecordsError(f"{path.name} is not running on this host: there is nothing to switch.")
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


def _switch(path: Path) -> LiveSwitch | None:
    """Return the switch of a run that is recorded on this host; None of others."""
    attempt, recorded = last_attempt(path), recorded_attempts(path)
    # A shared file system shows its lock to other hosts, too, but its times are those of its own.
    if attempt is None or not recorded or running_pid(attempt.launcher) is None:
        return None
    records = Records(path, recorded[-1])
    if not records.live:
        return None
    try:
        return LiveSwitch(records.folder)
    except RecordsError:  # it is ending
        return None
