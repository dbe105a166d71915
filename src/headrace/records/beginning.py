"""Waits for the first records of a run that has just begun."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from headrace.core.errors import LaunchError, RecordsError
from headrace.core.units import format_seconds
from headrace.records.layout import STORE, is_closed
from headrace.records.reading import Records, recorded_attempts
from headrace.records.run_folder import Attempt, RunFolder
from headrace.records.switch import NAME as SWITCH

_POLL_S = 0.05
_ANNOUNCED_S = 5.0
"""An attempt is told in run.json some milliseconds before its records folder is made."""
_COLLECTED_S = 30.0
"""The process that collects is started next. On a busy host that takes seconds; where it has not
come by then, it was killed."""


def wait_for_records(path: Path, waits: Callable[[], None]) -> None:
    """Wait until a run that has just begun has records; of any other, return at once.

    Args:
        path: The run's folder.
        waits: Called once, where they have to be waited for.

    Raises:
        RecordsError: They were waited for, and the run has ended without any.
    """
    waited = False
    while _is_beginning(path):
        if not waited:
            waits()
        waited = True
        time.sleep(_POLL_S)
    if waited and not recorded_attempts(path):
        raise _nothing_came(path)


def _is_beginning(path: Path) -> bool:
    """Whether the first records of a run's latest attempt are still to come."""
    attempt = _latest(path)
    if attempt is None:
        return False
    records = Records(path, attempt.number)
    if any(records.folder.glob(f"*{STORE}")) or is_closed(records.folder):
        return False
    if not (records.folder / SWITCH).exists():  # not yet, no more, or --profile off
        return attempt.ended_s is None and _age_s(attempt) < _ANNOUNCED_S
    return records.live or _age_s(attempt) < _COLLECTED_S


def _nothing_came(path: Path) -> RecordsError:
    attempt = _latest(path)
    if attempt is None or attempt.ended_s is None:
        return RecordsError(
            f"{path.name} has begun, and nothing of it is recorded: it runs with --profile off, "
            "or was killed at once."
        )
    return RecordsError(
        f"{path.name} ended with exit code {attempt.exit_code} after "
        f"{format_seconds(attempt.ended_s - attempt.started_s)}, before anything of it was "
        f"recorded. What it printed is in {RunFolder(path).logs(attempt.number)}."
    )


def _latest(path: Path) -> Attempt | None:
    try:
        return next(reversed(RunFolder(path).attempts()), None)
    except LaunchError:  # half-written or damaged: the records speak for themselves
        return None


def _age_s(attempt: Attempt) -> float:
    """Return how long ago it ended, or else began."""
    return time.time() - (attempt.started_s if attempt.ended_s is None else attempt.ended_s)
