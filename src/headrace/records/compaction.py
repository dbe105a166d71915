"""Compaction of a long run's store: rows added up by period, or moved out to Parquet parts.

Roll-up. Some tables have rows for every second or tick: where the code was, what transforms took,
how busy processes and cores were. Above a number of rows, those of one period that agree in all but
times and amounts become one; the period is doubled until a third of the rows is gone. So a run of
minutes is kept as it was written, and one of days as periods of minutes. Of sums nothing is lost,
and their first rows stay as they are. Moments of the system become means, and all of them: one
resolution for all of a run's past, or a chart would change its look in the middle.

Parts. Steps, waits and batches are each a measurement and are not added up; they grow with a run,
and a row takes a third of the room in Parquet. So the oldest go to files in a folder next to the
store, a part at a time; what is left to do at the end of a run of days is soon done. A part counts
once the store names it, in the transaction that takes its rows out of the store: where the
collector is killed in between, the part is written anew.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.records import system_table
from headrace.records.layout import PARQUET
from headrace.records.schema import (
    ARRIVALS,
    AUXILIARY_BATCHES,
    BATCHES,
    FETCHES,
    STEPS,
    TABLES,
    Aggregation,
)

UNCHANGED_ROWS = 60_000
"""So many rows of sums stay as they are: six minutes of a rank with eight workers."""
MAX_SUM_ROWS, MAX_MEAN_ROWS = 200_000, 100_000
"""Rows with which a table of sums, or of means, is added up."""
_FIRST_PERIOD_NS = 1_000_000_000
_LONGEST_PERIOD_NS = 2**17 * _FIRST_PERIOD_NS  # a day and a half: there is nothing to gain beyond
ROLLUP_STATE = """CREATE TABLE IF NOT EXISTS rolled (
    name TEXT PRIMARY KEY, period_ns INTEGER, most INTEGER
) WITHOUT ROWID"""

_SQL: dict[Aggregation, str] = {
    "": "{0}",
    "sum": "SUM({0})",
    "known-sum": "CASE WHEN MAX({0}) < 0 THEN -1 ELSE SUM(MAX({0}, 0)) END",
    "mean": "AVG({0})",
    "whole-mean": "CAST(ROUND(AVG({0})) AS INTEGER)",
    "first": "MIN({0})",
    "last": "MAX({0})",
}


@dataclass(frozen=True, slots=True)
class _RollupColumn:
    name: str
    joining: Aggregation

    @property
    def sql(self) -> str:
        return _SQL[self.joining].format(self.name)


@dataclass(slots=True)
class _RollupState:
    """Of one table: how long periods are now, and with how many rows it is added up again."""

    period_ns: int
    most: int


class RollUp:
    """Adds up the rows of one table of a store.

    Args:
        connection: The store.
        name: One of `rollup_tables`.
    """

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._count: int | None = None
        self._state: _RollupState | None = None

    def added(self, rows: int) -> None:
        """Count rows that were added."""
        if self._count is not None:
            self._count += rows

    def forget(self) -> None:
        """Count anew: what was added may not have been kept."""
        self._count = self._state = None

    @property
    def due(self) -> bool:
        """Whether there are so many rows that they should be added up."""
        if self._count is None:
            self._count = self._value(f"SELECT COUNT(*) FROM {self._name}")  # noqa: S608
        if self._state is None:
            self._state = self._read_state()
        return self._count > self._state.most

    def run(self) -> None:
        """Add rows up, within the caller's transaction; `due` was asked before.

        Raises:
            sqlite3.Error: The store could not be written.
        """
        state = self._state or self._read_state()
        columns = list(_rollup_columns(self._connection, self._name))
        moment = next(column.name for column in columns if column.joining in {"first", "last"})
        kept, limit = _row_limits(columns)
        enough = max(limit - kept, 0) * 2 // 3
        left = self._join(columns, moment, kept, state.period_ns)
        while left > enough and state.period_ns < _LONGEST_PERIOD_NS:
            state.period_ns *= 2
            left = self._join(columns, moment, kept, state.period_ns)
        self._count = self._value(f"SELECT COUNT(*) FROM {self._name}")  # noqa: S608
        # Where not even that helps, as with thousands of processes, it is not tried all the time.
        state.most = limit if left <= enough else max(limit, self._count + left)
        self._state = state
        self._connection.execute(
            "INSERT OR REPLACE INTO rolled VALUES (?, ?, ?)",
            (self._name, state.period_ns, state.most),
        )

    def _join(
        self, columns: Sequence[_RollupColumn], moment: str, kept: int, period_ns: int
    ) -> int:
        """Make one row of those that agree within a period; return how many are left."""
        top = self._value(f"SELECT MAX(rowid) FROM {self._name}")  # noqa: S608
        same = [column.name for column in columns if not column.joining]
        # Rows come back in their order in time, above all others: nothing is read that was joined.
        joined = self._connection.execute(
            f"INSERT INTO {self._name} ({', '.join(column.name for column in columns)})"  # noqa: S608
            f" SELECT {', '.join(column.sql for column in columns)} FROM {self._name}"
            f" WHERE rowid > ? AND rowid <= ? GROUP BY {', '.join([*same, f'{moment} / ?'])}"
            " ORDER BY MIN(rowid)",
            (kept, top, period_ns),
        ).rowcount
        self._connection.execute(
            f"DELETE FROM {self._name} WHERE rowid > ? AND rowid <= ?",  # noqa: S608
            (kept, top),
        )
        return joined

    def _read_state(self) -> _RollupState:
        found = self._connection.execute(
            "SELECT period_ns, most FROM rolled WHERE name = ?", (self._name,)
        ).fetchone()
        if found is not None:
            return _RollupState(*found)
        _, limit = _row_limits(list(_rollup_columns(self._connection, self._name)))
        return _RollupState(_FIRST_PERIOD_NS, limit)

    def _value(self, statement: str) -> int:
        (value,) = self._connection.execute(statement).fetchone()
        return int(value or 0)


def rollup_tables() -> tuple[str, ...]:
    """Return the names of the tables whose rows are added up."""
    names = [table.name for table in TABLES if any(field.joining for field in table.fields)]
    return (*names, system_table.NAME)


def _rollup_columns(connection: sqlite3.Connection, name: str) -> Iterator[_RollupColumn]:
    if name == system_table.NAME:
        for column in system_table.stored_columns(connection):
            whole: Aggregation = (
                "whole-mean" if system_table.column_description(column).whole else "mean"
            )
            yield _RollupColumn(column, "last" if column == system_table.TIME_COLUMN else whole)
        return
    fields = next(table.fields for table in TABLES if table.name == name)
    for field in fields:
        yield _RollupColumn(field.name, field.joining)


def _row_limits(columns: Sequence[_RollupColumn]) -> tuple[int, int]:
    """Return how many rows stay as they are at the begin, and with how many rows are added up."""
    if any(column.joining in {"mean", "whole-mean"} for column in columns):
        return 0, MAX_MEAN_ROWS
    return UNCHANGED_ROWS, MAX_SUM_ROWS


TABLES_WITH_PARTS = tuple(
    table.name for table in (STEPS, FETCHES, BATCHES, AUXILIARY_BATCHES, ARRIVALS)
)
"""The tables that are moved out."""
PART_ROWS = 65_536
"""Written in some tenths of a second, in which rings must not run full."""
PARTS_FOLDER = ".parts"
PARTS_STATE = """CREATE TABLE IF NOT EXISTS parts (
    name TEXT, number INTEGER, PRIMARY KEY (name, number)
) WITHOUT ROWID"""


class ParquetParts:
    """Moves the oldest rows of a store out.

    Args:
        connection: The store.
        path: Its file.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._counts: dict[str, int] = {}

    def added(self, name: str, rows: int) -> None:
        """Count rows that were added."""
        if name in self._counts:
            self._counts[name] += rows

    def forget(self) -> None:
        """Count anew: what was added may not have been kept."""
        self._counts.clear()

    def due(self) -> str | None:
        """Return a table that holds enough rows for a part; None: no one does."""
        for name in TABLES_WITH_PARTS:
            if name not in self._counts:
                found = self._connection.execute(f"SELECT COUNT(*) FROM {name}")  # noqa: S608
                self._counts[name] = found.fetchone()[0]
        return next(
            (name for name in TABLES_WITH_PARTS if self._counts[name] >= 2 * PART_ROWS), None
        )

    def write(self, name: str) -> tuple[int, int]:
        """Write the oldest rows to a file; return its number and the last of these rows.

        Raises:
            OSError: The disk is full or gone.
            sqlite3.Error: The store cannot be read.
        """
        from headrace.records.parquet_tables import (
            write_oldest_rows,  # Arrow takes 40 MB: not in a short run
        )

        (before,) = self._connection.execute(
            "SELECT MAX(number) FROM parts WHERE name = ?", (name,)
        ).fetchone()
        number = (before or 0) + 1
        path = _part_file(self._path, name, number)
        path.parent.mkdir(exist_ok=True)
        return number, write_oldest_rows(self._connection, name, PART_ROWS, path)

    def take_out(self, name: str, number: int, last: int) -> None:
        """Name a part that was written, and drop its rows, within the caller's transaction."""
        self._connection.execute("INSERT INTO parts VALUES (?, ?)", (name, number))
        dropped = self._connection.execute(
            f"DELETE FROM {name} WHERE rowid <= ?",  # noqa: S608
            (last,),
        ).rowcount
        self._counts[name] -= dropped

    @staticmethod
    def remove(path: Path) -> None:
        """Remove all parts of a store that is gone."""
        shutil.rmtree(path.with_name(path.name + PARTS_FOLDER), ignore_errors=True)


def part_files(connection: sqlite3.Connection, path: Path, name: str) -> Iterator[Path]:
    """Yield the files of a table's parts, the oldest rows first.

    Args:
        connection: The store.
        path: Its file.
        name: The table.
    """
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'parts'").fetchone()
    if known is None:  # an older version's
        return
    rows = connection.execute("SELECT number FROM parts WHERE name = ? ORDER BY number", (name,))
    for (number,) in rows.fetchall():
        yield _part_file(path, name, number)


def _part_file(path: Path, name: str, number: int) -> Path:
    return path.with_name(path.name + PARTS_FOLDER) / f"{name}-{number:06}{PARQUET}"
