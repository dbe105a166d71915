"""Totals of steps, waits and batches by period, of rows that a long run's store has moved out.

Charts of hours need no single rows. The totals are added up in the transaction that deletes the
rows from the store, and are rolled up like other sums (`compaction.py`).
"""

from __future__ import annotations

import sqlite3

from headrace.records.compaction import AGGREGATION_SQL
from headrace.records.schema import (
    BATCH_TOTALS,
    BATCHES,
    FETCH_TOTALS,
    FETCHES,
    PHASES,
    STEP_TOTALS,
    STEPS,
)

_PERIOD_NS = 2_000_000_000
_UNKNOWN_READY = 2**40  # above any number, as the fewest count
_SAMPLES = AGGREGATION_SQL["known-sum"].format("samples")
_PHASE_SUMS = ", ".join(f"SUM({phase}_ns)" for phase in PHASES)
_STEP_SUMS = f"""
COUNT(*), {_SAMPLES}, SUM(wall_ns), {_PHASE_SUMS},
MAX(wall_ns), MAX(data_wait_ns), MAX(sync_ns), MAX(other_ns),
MAX(1.0 * data_wait_ns / MAX(wall_ns, 1))"""
_FETCH_SUMS = f"""
SUM(ended = 0), SUM(wait_ns), SUM(ended = 0 AND ready >= 0),
SUM(CASE WHEN ended = 0 AND ready >= 0 THEN ready ELSE 0 END),
MIN(CASE WHEN ended = 0 AND ready >= 0 THEN ready ELSE {_UNKNOWN_READY} END)"""
_TOTALS = {
    STEPS.name: (
        STEP_TOTALS.name,
        "rank, kind",
        _STEP_SUMS,
        "start_ns",
        "start_ns + wall_ns",
    ),
    FETCHES.name: (
        FETCH_TOTALS.name,
        "rank, loader",
        _FETCH_SUMS,
        "start_ns",
        "start_ns + wait_ns",
    ),
    BATCHES.name: (
        BATCH_TOTALS.name,
        "rank, loader, worker",
        "COUNT(*), SUM(wall_ns)",
        "start_ns - MAX(idle_ns, 0) - MAX(send_ns, 0)",  # the worker was idle before
        "start_ns + wall_ns",
    ),
}
"""By table: the table of its totals, what is added up apart, the sums, a row's begin and end."""


def totals_table(name: str) -> str | None:
    """Return the name of the table with the totals of a table; None if it has none."""
    found = _TOTALS.get(name)
    return None if found is None else found[0]


def add_totals(connection: sqlite3.Connection, name: str, last: int | None = None) -> int:
    """Add up the rows of a table, up to one, by periods; return how many totals that gave."""
    if name not in _TOTALS:
        return 0
    target, keys, sums, began, ended = _TOTALS[name]
    until = "" if last is None else f"WHERE rowid <= {int(last)}"
    return connection.execute(
        f"INSERT INTO {target} SELECT {keys}, MIN({began}), MAX({ended}), {sums} "  # noqa: S608
        f"FROM {name} {until} GROUP BY {keys}, start_ns / {_PERIOD_NS} ORDER BY MIN(rowid)"
    ).rowcount


def complete_totals(connection: sqlite3.Connection) -> None:
    """Add up the rows that are in no part, of tables with parts: the records are being closed."""
    with_parts = {name for (name,) in connection.execute("SELECT DISTINCT name FROM parts")}
    for name in with_parts:
        add_totals(connection, name)
