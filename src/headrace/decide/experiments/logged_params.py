"""The params that a run's script logged, as `headrace compare` shows those that differ.

A SQLite database has those of the script's own MLflow calls, too; of a run that is tracked on a
server those of its spool are read, so that no server is asked.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from headrace.decide.experiments.run_target import (
    ARGUMENT_PREFIX,
    JOB_PREFIX,
    TARGET_FILE,
    RunTarget,
    database_file,
)
from headrace.decide.experiments.sent_state import SentState
from headrace.decide.experiments.spool import SPOOL, spool_files
from headrace.decide.experiments.stored_runs import is_locked, open_database
from headrace.records.redaction import HIDDEN, is_secret, redact_text

_QUERY = "SELECT key, value FROM params WHERE run_uuid = ? ORDER BY key"
_LINE = b'{"kind": "params"'
"""The beginning of the lines that have some; most of a spool are metrics."""


def logged_params(run: Path, locked: set[Path] | None = None) -> dict[str, str]:
    """Return the params that a run's script logged, by name; {} where they cannot be read.

    Args:
        run: Its folder.
        locked: The databases that other programs had for themselves when runs before this one were
            read: they are not waited for again.
    """
    known = set() if locked is None else locked
    found = _stored_params(run, known) or _spooled_params(run / SPOOL)
    others = ARGUMENT_PREFIX, JOB_PREFIX  # of `headrace run`, whose settings run.json has
    return {
        name: HIDDEN if is_secret(name, value) else redact_text(value)
        for name, value in found.items()
        if not name.startswith(others)
    }


def is_logged_to(run: Path) -> bool:
    """Return whether a folder is that of a run with params or metrics, if of nothing else."""
    return (run / SPOOL / TARGET_FILE).exists()


def _stored_params(run: Path, locked: set[Path]) -> dict[str, str]:
    target = RunTarget.readable(run / SPOOL)
    file = None if target is None else database_file(target.tracking_uri)
    if file is None or file in locked:
        return {}
    try:
        with open_database(file) as database:
            return dict(database.execute(_QUERY, [SentState.read(run / SPOOL).run_id]))
    except (OSError, ValueError, TypeError, sqlite3.Error) as error:
        if is_locked(error):
            locked.add(file)
        return {}


def _spooled_params(spool: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    with suppress(OSError):
        for values in _param_lines(spool):
            for name, value in values.items():
                found.setdefault(name, value)  # as MLflow has it, whose cannot change
    return found


def _param_lines(spool: Path) -> Iterator[dict[str, str]]:
    for file in spool_files(spool):
        with file.open("rb") as lines:
            for line in lines:
                if line.startswith(_LINE):
                    with suppress(ValueError):  # a damaged one, which sending reports
                        yield json.loads(line)["values"]
