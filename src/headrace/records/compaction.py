"""Compaction of a long run's store: rows aggregated by period, or moved to Parquet parts.

Roll-up. Some tables have rows for every second or tick: stacks, transforms, usage of processes and
cores. Above a number of rows, those of one period that differ only in times and amounts are merged;
the period is doubled until a third of the rows is gone. So a run of minutes stays as it was
recorded, and one of days has periods of minutes. Sums lose nothing, and their first rows are never
merged. Metrics of the system become means, over the whole run: a chart with two resolutions would
change its look in the middle.

Parts. Steps, waits and batches are single measurements and are not merged; they grow with a run,
and a row takes a third of the space in Parquet. So the oldest are moved to files next to the store,
a part at a time, which also shortens the close after a run of days. A part is valid once the store
names it, in the transaction that deletes its rows: if the collector is killed before, it is
rewritten.
The same transaction adds them up by periods (see `row_totals.py`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.records import system_table
from headrace.records.layout import part_file
from headrace.records.schema import (
    ARRIVALS,
    AUXILIARY_BATCHES,
    BATCHES,
    FETCHES,
    STEPS,
    TABLES,
    TABLES_BY_NAME,
    TOTALS,
    Aggregation,
    RowLimits,
)

_FIRST_PERIOD_NS = 1_000_000_000
_LONGEST_PERIOD_NS = 2**17 * _FIRST_PERIOD_NS  # a day and a half: longer ones gain nothing
ROLLUP_STATE = """CREATE TABLE IF NOT EXISTS rolled (
    name TEXT PRIMARY KEY, period_ns INTEGER, most INTEGER
) WITHOUT ROWID"""

AGGREGATION_SQL: dict[Aggregation, str] = {
    "": "{0}",
    "sum": "SUM({0})",
    "known-sum": "CASE WHEN MAX({0}) < 0 THEN -1 ELSE SUM(MAX({0}, 0)) END",
    "mean": "AVG({0})",
    "whole-mean": "CAST(ROUND(AVG({0})) AS INTEGER)",
    "first": "MIN({0})",
    "last": "MAX({0})",
    "most": "MAX({0})",
    "least": "MIN({0})",
}


@dataclass(slots=True)
class _RollupState:
    """A table's present period, and the number of rows above which it is merged again."""

    period_ns: int
    most: int


class RollUp:
    """The roll-up of one of `rollup_tables` in a store."""

    def __init__(self, connection: sqlite3.Connection, name: str, limits: RowLimits) -> None:
        self._connection = connection
        self._name = name
        self._limits = limits
        self._count: int | None = None
        self._state: _RollupState | None = None

    def added(self, rows: int) -> None:
        """Count rows that were added."""
        if self._count is not None:
            self._count += rows

    def forget(self) -> None:
        """Drop the count: the transaction of added rows was rolled back."""
        self._count = self._state = None

    @property
    def due(self) -> bool:
        """Whether the table has more rows than its limit."""
        if self._count is None:
            self._count = self._value(f"SELECT COUNT(*) FROM {self._name}")  # noqa: S608
        if self._state is None:
            self._state = self._read_state()
        return self._count > self._state.most

    def run(self) -> None:
        """Merge rows, within the caller's transaction, if `due`."""
        state = self._state or self._read_state()
        columns = _rollup_columns(self._connection, self._name)
        unchanged, limit = self._row_limits(columns)
        enough = max(limit - unchanged, 0) * 2 // 3
        remaining = self._merge(columns, unchanged, state.period_ns)
        while remaining > enough and state.period_ns < _LONGEST_PERIOD_NS:
            state.period_ns *= 2
            remaining = self._merge(columns, unchanged, state.period_ns)
        self._count = self._value(f"SELECT COUNT(*) FROM {self._name}")  # noqa: S608
        # If even that does not suffice, as with thousands of processes, it is not retried at once.
        state.most = limit if remaining <= enough else max(limit, self._count + remaining)
        self._state = state
        self._connection.execute(
            "INSERT OR REPLACE INTO rolled VALUES (?, ?, ?)",
            (self._name, state.period_ns, state.most),
        )

    def _merge(self, columns: Mapping[str, Aggregation], unchanged: int, period_ns: int) -> int:
        """Merge the rows that agree within a period; return how many remain."""
        top = self._value(f"SELECT MAX(rowid) FROM {self._name}")  # noqa: S608
        same = [name for name, aggregation in columns.items() if not aggregation]
        time_column = next(
            name for name, aggregation in columns.items() if aggregation in {"first", "last"}
        )
        merged = [
            AGGREGATION_SQL[aggregation].format(name) for name, aggregation in columns.items()
        ]
        # Merged rows are appended in order of time, above `top`: readers of new rows skip them.
        merged_rows = self._connection.execute(
            f"INSERT INTO {self._name} ({', '.join(columns)})"  # noqa: S608
            f" SELECT {', '.join(merged)} FROM {self._name} WHERE rowid > ? AND rowid <= ? GROUP "
            f"BY {', '.join([*same, f'{time_column} / ?'])} ORDER BY MIN(rowid)",
            (unchanged, top, period_ns),
        ).rowcount
        self._connection.execute(
            f"DELETE FROM {self._name} WHERE rowid > ? AND rowid <= ?",  # noqa: S608
            (unchanged, top),
        )
        return merged_rows

    def _read_state(self) -> _RollupState:
        found = self._connection.execute(
            "SELECT period_ns, most FROM rolled WHERE name = ?", (self._name,)
        ).fetchone()
        if found is not None:
            return _RollupState(*found)
        _, limit = self._row_limits(_rollup_columns(self._connection, self._name))
        return _RollupState(_FIRST_PERIOD_NS, limit)

    def _row_limits(self, columns: Mapping[str, Aggregation]) -> tuple[int, int]:
        """Return how many first rows are never merged, and the limit above which others are."""
        if {"mean", "whole-mean"} & set(columns.values()):
            return 0, min(self._limits.means, self._limits.values // len(columns))
        if self._name in TOTALS:
            return 0, self._limits.totals
        return self._limits.unchanged, self._limits.sums

    def _value(self, statement: str) -> int:
        (value,) = self._connection.execute(statement).fetchone()
        return int(value or 0)


def rollup_tables() -> tuple[str, ...]:
    """Return the names of the tables whose rows are merged."""
    names = [table.name for table in TABLES if any(field.aggregation for field in table.fields)]
    return (*names, system_table.NAME)


def _rollup_columns(connection: sqlite3.Connection, name: str) -> dict[str, Aggregation]:
    if name != system_table.NAME:
        return {field.name: field.aggregation for field in TABLES_BY_NAME[name].fields}
    columns: dict[str, Aggregation] = {}
    for column in system_table.stored_columns(connection):
        is_whole = system_table.column_description(column).whole
        columns[column] = "whole-mean" if is_whole else "mean"
    if system_table.HOST_COLUMN in columns:
        columns[system_table.HOST_COLUMN] = ""
    return {**columns, system_table.TIME_COLUMN: "last"}


TABLES_WITH_PARTS = tuple(
    table.name for table in (STEPS, FETCHES, BATCHES, AUXILIARY_BATCHES, ARRIVALS)
)
"""The tables whose oldest rows are moved to parts."""
PARTS_STATE = """CREATE TABLE IF NOT EXISTS parts (
    name TEXT, number INTEGER, PRIMARY KEY (name, number)
) WITHOUT ROWID"""


class ParquetParts:
    """The Parquet parts of a store, which take its oldest rows."""

    def __init__(self, connection: sqlite3.Connection, path: Path, part_rows: int) -> None:
        self._connection = connection
        self._path = path
        self._part_rows = part_rows
        self._counts: dict[str, int] = {}

    def added(self, name: str, rows: int) -> None:
        """Count rows that were added."""
        if name in self._counts:
            self._counts[name] += rows

    def forget(self) -> None:
        """Drop the count: the transaction of added rows was rolled back."""
        self._counts.clear()

    def due(self) -> str | None:
        """Return the name of a table with enough rows for a part; None if none has."""
        for name in TABLES_WITH_PARTS:
            if name not in self._counts:
                found = self._connection.execute(f"SELECT COUNT(*) FROM {name}")  # noqa: S608
                self._counts[name] = found.fetchone()[0]
            if self._counts[name] >= 2 * self._part_rows:
                return name
        return None

    def write(self, name: str) -> tuple[int, int]:
        """Write the oldest rows of a table to a part; return its number and the last row's."""
        # Arrow takes 40 MB: it is not loaded in a short run.
        from headrace.records.parquet_tables import write_oldest_rows

        (before,) = self._connection.execute(
            "SELECT MAX(number) FROM parts WHERE name = ?", (name,)
        ).fetchone()
        number = (before or 0) + 1
        path = part_file(self._path, name, number)
        path.parent.mkdir(exist_ok=True)
        return number, write_oldest_rows(self._connection, name, self._part_rows, path)

    def take_out(self, name: str, number: int, last: int) -> None:
        """Register a written part, and delete its rows, within the caller's transaction."""
        self._connection.execute("INSERT INTO parts VALUES (?, ?)", (name, number))
        dropped = self._connection.execute(
            f"DELETE FROM {name} WHERE rowid <= ?",  # noqa: S608
            (last,),
        ).rowcount
        self._counts[name] -= dropped
