"""Rows that a store has moved out, while a long run goes on: Parquet files in a folder beside it.

Steps, waits and batches grow with a run, and a row takes a third of the room in Parquet. So the
oldest go there, a part at a time; what is left to do at the end of a run of days is soon done. A
part counts once the store names it, in the transaction that takes its rows out of the store: where
the collector is killed in between, the part is written anew.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from headrace.records.layout import PARQUET
from headrace.records.schema import ARRIVALS, AUXILIARY_BATCHES, BATCHES, FETCHES, STEPS

PARTED = tuple(table.name for table in (STEPS, FETCHES, BATCHES, AUXILIARY_BATCHES, ARRIVALS))
"""The tables that are moved out."""
PART_ROWS = 65_536
"""Written in some tenths of a second, in which rings must not run full."""
FOLDER = ".parts"
STATE = """CREATE TABLE IF NOT EXISTS parts (
    name TEXT, number INTEGER, PRIMARY KEY (name, number)
) WITHOUT ROWID"""


class Parts:
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
        for name in PARTED:
            if name not in self._counts:
                found = self._connection.execute(f"SELECT COUNT(*) FROM {name}")  # noqa: S608
                self._counts[name] = found.fetchone()[0]
        return next((name for name in PARTED if self._counts[name] >= 2 * PART_ROWS), None)

    def write(self, name: str) -> tuple[int, int]:
        """Write the oldest rows to a file; return its number and the last of these rows.

        Raises:
            OSError: The disk is full or gone.
            sqlite3.Error: The store cannot be read.
        """
        from headrace.records.parquet import write_oldest  # Arrow takes 40 MB: not in a short run

        (before,) = self._connection.execute(
            "SELECT MAX(number) FROM parts WHERE name = ?", (name,)
        ).fetchone()
        number = (before or 0) + 1
        path = _file(self._path, name, number)
        path.parent.mkdir(exist_ok=True)
        return number, write_oldest(self._connection, name, PART_ROWS, path)

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
        shutil.rmtree(path.with_name(path.name + FOLDER), ignore_errors=True)


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
        yield _file(path, name, number)


def _file(path: Path, name: str, number: int) -> Path:
    return path.with_name(path.name + FOLDER) / f"{name}-{number:06}{PARQUET}"
