"""Rows of a long run are added up, so that a store does not grow with time but with what happened.

Some tables have rows for every second or tick: where the code was, what transforms took, how busy
processes and cores were. Once such a table holds too many rows, those of one period that agree in
all but times and amounts become one; the period is doubled until a third of the rows is gone. So a
run of minutes is kept as it was written, and one of days as periods of minutes.

Of sums nothing is lost, and their first rows stay as they are: lines of code are best told apart
by the second. Moments of the system become means, and all of them: one resolution for all of a
run's past, or a chart would change its look in the middle.

Steps, waits and batches are not touched: each is a measurement.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.records import system
from headrace.records.schema import TABLES, Joining

FIRST_ROWS = 60_000
"""So many rows of sums stay as they are: six minutes of a rank with eight workers."""
MOST_SUMS, MOST_MEANS = 200_000, 100_000
"""Rows with which a table of sums, or of means, is added up."""
_FIRST_PERIOD_NS = 1_000_000_000
_LONGEST_PERIOD_NS = 2**17 * _FIRST_PERIOD_NS  # a day and a half: there is nothing to gain beyond
STATE = """CREATE TABLE IF NOT EXISTS rolled (
    name TEXT PRIMARY KEY, period_ns INTEGER, most INTEGER
) WITHOUT ROWID"""

_SQL: dict[Joining, str] = {
    "": "{0}",
    "sum": "SUM({0})",
    "known-sum": "CASE WHEN MAX({0}) < 0 THEN -1 ELSE SUM(MAX({0}, 0)) END",
    "mean": "AVG({0})",
    "whole-mean": "CAST(ROUND(AVG({0})) AS INTEGER)",
    "first": "MIN({0})",
    "last": "MAX({0})",
}


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    joining: Joining

    @property
    def sql(self) -> str:
        return _SQL[self.joining].format(self.name)


@dataclass(slots=True)
class _State:
    """Of one table: how long periods are now, and with how many rows it is added up again."""

    period_ns: int
    most: int


class RollUp:
    """Adds up the rows of one table of a store.

    Args:
        connection: The store.
        name: One of `rolled_tables`.
    """

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._count: int | None = None
        self._state: _State | None = None

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
        columns = list(_columns(self._connection, self._name))
        moment = next(column.name for column in columns if column.joining in {"first", "last"})
        kept, limit = _limits(columns)
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

    def _join(self, columns: Sequence[_Column], moment: str, kept: int, period_ns: int) -> int:
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

    def _read_state(self) -> _State:
        found = self._connection.execute(
            "SELECT period_ns, most FROM rolled WHERE name = ?", (self._name,)
        ).fetchone()
        if found is not None:
            return _State(*found)
        _, limit = _limits(list(_columns(self._connection, self._name)))
        return _State(_FIRST_PERIOD_NS, limit)

    def _value(self, statement: str) -> int:
        (value,) = self._connection.execute(statement).fetchone()
        return int(value or 0)


def rolled_tables() -> tuple[str, ...]:
    """Return the names of the tables whose rows are added up."""
    names = [table.name for table in TABLES if any(field.joining for field in table.fields)]
    return (*names, system.NAME)


def _columns(connection: sqlite3.Connection, name: str) -> Iterator[_Column]:
    if name == system.NAME:
        for column in system.columns_in(connection):
            whole: Joining = "whole-mean" if system.described(column).whole else "mean"
            yield _Column(column, "last" if column == system.MOMENT else whole)
        return
    fields = next(table.fields for table in TABLES if table.name == name)
    for field in fields:
        yield _Column(field.name, field.joining)


def _limits(columns: Sequence[_Column]) -> tuple[int, int]:
    """Return how many rows stay as they are at the begin, and with how many rows are added up."""
    if any(column.joining in {"mean", "whole-mean"} for column in columns):
        return 0, MOST_MEANS
    return FIRST_ROWS, MOST_SUMS
