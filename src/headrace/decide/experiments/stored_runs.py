"""The runs that MLflow has, with their params, tags and last metrics.

A SQLite database is read directly, which takes milliseconds: MLflow's client takes more than a
second to be imported. What cannot be read so, its client reads, or says why not.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.decide.experiments.run_target import database_file, shown_uri
from headrace.decide.experiments.stored_numbers import logged_number
from headrace.decide.experiments.tracking_store import StoreUnavailableError, TrackingStore

_LOCKED_S = 3.0  # for a writer of the database to end, which takes it milliseconds
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_CHOSEN = """
    FROM runs JOIN experiments USING (experiment_id)
    WHERE runs.lifecycle_stage = 'active' AND experiments.lifecycle_stage = 'active'
    AND (? IS NULL OR experiments.name = ?)
"""
_RUNS = f"""
    SELECT run_uuid, experiments.name, runs.name, status, start_time, end_time {_CHOSEN}
    ORDER BY start_time DESC, run_uuid
"""
_VALUES = {
    "params": "SELECT run_uuid, key, value FROM params",
    "tags": "SELECT run_uuid, key, value FROM tags",
    "metrics": "SELECT run_uuid, key, IIF(is_nan, NULL, value) FROM latest_metrics",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run as a store has it.

    Attributes:
        metrics: The last value of each.
    """

    run_id: str
    experiment: str
    name: str
    state: str
    started_ms: int
    ended_ms: int | None
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def stored_runs(uri: str, experiment: str | None = None) -> list[StoredRun]:
    """Return the runs of an experiment, or of all; the latest first.

    A database that is not there has none, and is not made. Raises StoreUnavailableError,
    StoreRefusalError.
    """
    database = database_file(uri)
    try:
        if database is not None:
            return list(_of_database(database, experiment)) if database.exists() else []
    except OSError as error:
        raise StoreUnavailableError(f"{shown_uri(uri)} cannot be read: {error}.") from error
    except (sqlite3.Error, TypeError, ValueError) as error:
        if is_locked(error):
            raise StoreUnavailableError(
                f"{shown_uri(uri)} cannot be used now: {error}. Another program has it for itself: "
                f"try again, or end that one (fuser {database} names it)."
            ) from error
        # Else it is damaged, or of another version, of which the client knows more.
    return [_of_client(name, run) for name, run in TrackingStore(uri).runs(experiment)]


def is_locked(error: Exception) -> bool:
    """Whether a database could not be read as another program has it for itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _LOCKED  # the rest says in what way


def open_database(file: Path) -> closing[sqlite3.Connection]:
    """Return a SQLite database, opened to be read alone; raises sqlite3.Error."""
    address = f"{file.absolute().as_uri()}?mode=ro"
    return closing(sqlite3.connect(address, uri=True, timeout=_LOCKED_S))


def _of_database(file: Path, experiment: str | None) -> Iterator[StoredRun]:
    chosen = (experiment, experiment)
    with open_database(file) as database:
        database.execute("BEGIN")  # all of one moment: a run may begin meanwhile
        found = {
            run_id: StoredRun(
                run_id=run_id, experiment=of_experiment, name=name or "", state=state,
                started_ms=int(started_ms), ended_ms=ended_ms,
            )
            for run_id, of_experiment, name, state, started_ms, ended_ms
            in database.execute(_RUNS, chosen)
        }  # fmt: skip
        for kind, query in _VALUES.items():
            mine = f"{query} WHERE run_uuid IN (SELECT run_uuid {_CHOSEN})"
            for run_id, key, value in database.execute(mine, chosen):
                known = logged_number(value) if kind == "metrics" else value
                getattr(found[run_id], kind)[key] = known
    yield from found.values()


def _of_client(experiment: str, run: Any) -> StoredRun:
    return StoredRun(
        run_id=str(run.info.run_id), experiment=experiment, name=str(run.info.run_name),
        state=str(run.info.status), started_ms=int(run.info.start_time), ended_ms=run.info.end_time,
        params=dict(run.data.params), tags=dict(run.data.tags),
        metrics={name: logged_number(value) for name, value in run.data.metrics.items()},
    )  # fmt: skip
