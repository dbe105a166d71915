"""The store of a host's records while its job runs: an SQLite file that outlives a killed process.

Rows, the readers' positions in the rings and the texts read from them change in one transaction.
Texts are stored once, under a number. Rows of a long run are merged or moved out (`compaction.py`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.records import compaction, row_totals, system_table
from headrace.records.ring import RingReader
from headrace.records.schema import FORMAT_VERSION, TABLES, RowLimits, Table, check_version

_REMEMBERED_TEXTS = 20_000  # beyond them a text may be stored twice, which is harmless
_SQL_TYPES = {"int": "INTEGER", "float": "REAL", "text": "INTEGER"}  # text: its number
_INSERTS = {
    table.number: (
        f"INSERT INTO {table.name} VALUES ({', '.join('?' * len(table.fields))})",  # noqa: S608
        table.text_indexes,
    )
    for table in TABLES
}
_OWN_TABLES = (
    "CREATE TABLE IF NOT EXISTS texts (id INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS rings (
        name TEXT, made_ns INTEGER, read INTEGER, dropped INTEGER, PRIMARY KEY (name, made_ns)
    ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS ring_texts (
        name TEXT, made_ns INTEGER, number INTEGER, text INTEGER,
        PRIMARY KEY (name, made_ns, number)
    ) WITHOUT ROWID""",
    f"CREATE TABLE IF NOT EXISTS {system_table.NAME} ({system_table.TIME_COLUMN} INTEGER)",
    compaction.ROLLUP_STATE,
    compaction.PARTS_STATE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingPosition:
    """The stored position of a ring's reader."""

    read: int | None = None  # bytes since the ring's creation; None: not in the store
    dropped: int = 0  # dropped records that the events name already
    texts: Mapping[int, str] = field(default_factory=dict)  # those before it, by their numbers


class RecordStore:
    """The writer of one host's store, an SQLite file; raises RecordsError if it is too new."""

    def __init__(self, path: Path, limits: RowLimits) -> None:
        self.path = path
        self.connection = sqlite3.connect(path, isolation_level=None)
        self._texts: dict[str, int] = {}
        self._rolled = {
            name: compaction.RollUp(self.connection, name, limits)
            for name in compaction.rollup_tables()
        }
        self._parts = compaction.ParquetParts(self.connection, path, limits.part)
        check_version(self.connection.execute("PRAGMA user_version").fetchone()[0], path)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = NORMAL",  # only a power cut loses rows
            f"PRAGMA user_version = {FORMAT_VERSION}",
        ):
            self.connection.execute(statement)
        with self.transaction():  # so that a reader sees all tables or none
            for statement in _OWN_TABLES:
                self.connection.execute(statement)
            for table in TABLES:
                columns = (f"{field.name} {_SQL_TYPES[field.kind]}" for field in table.fields)
                self.connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {table.name} ({', '.join(columns)})"
                )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all changes of the block, or roll all back; sqlite3.Error: the commit failed."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            self._texts.clear()  # some of them may be rolled back
            for rolled in self._rolled.values():
                rolled.forget()
            self._parts.forget()
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    def add(self, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add rows, their values in the order of the table's fields."""
        if not rows:
            return
        statement, text_indexes = _INSERTS[table.number]
        if text_indexes:
            rows = [self._with_text_numbers(row, text_indexes) for row in rows]
        self.connection.executemany(statement, rows)
        if table.name in self._rolled:
            self._rolled[table.name].added(len(rows))
        self._parts.added(table.name, len(rows))

    def declare_system(self, columns: Sequence[str]) -> None:
        """Add the columns that rows of `system` have from now on."""
        present = system_table.stored_columns(self.connection)
        for name in columns:
            if name not in present:
                kind = "INTEGER" if system_table.column_description(name).whole else "REAL"
                self.connection.execute(f"ALTER TABLE {system_table.NAME} ADD COLUMN {name} {kind}")

    def add_system(self, columns: Sequence[str], values: Sequence[float | None]) -> None:
        """Add one row of `system`, its values in the order of the given columns."""
        names, placeholders = ", ".join(columns), ", ".join("?" * len(columns))
        self.connection.execute(
            f"INSERT INTO {system_table.NAME} ({names}) VALUES ({placeholders})",  # noqa: S608
            values,
        )
        self._rolled[system_table.NAME].added(1)

    def roll_up(self) -> None:
        """Merge rows of tables that have too many, in one transaction."""
        due = [rolled for rolled in self._rolled.values() if rolled.due]
        if due:
            with self.transaction():
                for rolled in due:
                    rolled.run()

    def move_out(self) -> None:
        """Move the oldest rows of a large table to a part; if it fails, the store is unchanged."""
        name = self._parts.due()
        if name is not None:
            number, last = self._parts.write(name)
            with self.transaction():
                if (totals := row_totals.totals_table(name)) is not None:
                    self._rolled[totals].added(row_totals.add_totals(self.connection, name, last))
                self._parts.take_out(name, number, last)

    def complete_totals(self) -> None:
        """Add up the rows of tables with totals that are in no part yet."""
        row_totals.complete_totals(self.connection)

    def move(self, name: str, reader: RingReader, dropped: int) -> None:
        """Store the position of a ring's reader, with the texts read since the last one."""
        key = (name, reader.made_ns)
        self.connection.execute(
            "INSERT OR REPLACE INTO rings VALUES (?, ?, ?, ?)", (*key, reader.position, dropped)
        )
        if reader.forgotten:
            self.forget_texts(*key)
        self.connection.executemany(
            "INSERT OR REPLACE INTO ring_texts VALUES (?, ?, ?, ?)",
            [(*key, number, self._text(text)) for number, text in reader.new_texts.items()],
        )

    def move_file(self, name: str, position: int) -> None:
        """Store the position in bytes of a file that other hosts' rows are read from."""
        self.connection.execute(
            "INSERT OR REPLACE INTO rings VALUES (?, 0, ?, 0)", (name, position)
        )

    def forget_file(self, name: str) -> None:
        """Drop the position of a file that was removed: its name may be used again."""
        self.connection.execute("DELETE FROM rings WHERE name = ? AND made_ns = 0", (name,))

    def forget_texts(self, name: str, made_ns: int) -> None:
        """Drop a ring's texts: they are not used again."""
        self.connection.execute(
            "DELETE FROM ring_texts WHERE name = ? AND made_ns = ?", (name, made_ns)
        )

    def is_empty(self, table: Table) -> bool:
        """Return whether a table has no row."""
        found = self.connection.execute(f"SELECT 1 FROM {table.name} LIMIT 1").fetchone()  # noqa: S608
        return found is None

    def known_hosts(self) -> set[tuple[str, int]]:
        """Return name and number of each host in `hosts`."""
        return set(
            self.connection.execute(
                "SELECT texts.text, t.number FROM hosts AS t JOIN texts ON texts.id = t.host"
            )
        )

    def close(self) -> None:
        """Close the file, and merge its write-ahead log into it."""
        self.connection.close()

    def _with_text_numbers(self, row: tuple[Any, ...], indexes: Sequence[int]) -> tuple[Any, ...]:
        values = list(row)
        for index in indexes:
            values[index] = self._text(values[index])
        return tuple(values)

    def _text(self, text: str) -> int:
        number = self._texts.get(text)
        if number is None:
            if len(self._texts) >= _REMEMBERED_TEXTS:
                self._texts.clear()
            # A lone surrogate, as in an undecodable file name, cannot be stored.
            clean = text.encode(errors="replace").decode()
            cursor = self.connection.execute("INSERT INTO texts (text) VALUES (?)", (clean,))
            number = self._texts[text] = cursor.lastrowid or 0
        return number


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open a store read-only, while another process may write it; RecordsError if it is too new."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{_reading(path)}", uri=True)
    connection.isolation_level = None
    try:
        check_version(connection.execute("PRAGMA user_version").fetchone()[0], path)
    except BaseException:
        connection.close()
        raise
    return connection


def _reading(path: Path) -> str:
    """Return the parameters with which SQLite opens a store for reading.

    SQLite makes a write-ahead log where there is none, as after the last process that had the store
    open has closed it. Where it may not, as in a folder of another user or on a disk that is
    mounted read-only, it refuses the store unless it is said not to change.
    """
    has_log = path.with_name(f"{path.name}-wal").exists()
    is_fixed = not has_log and not os.access(path.parent, os.W_OK)
    return "mode=ro&immutable=1" if is_fixed else "mode=ro"


def has_tables(connection: sqlite3.Connection) -> bool:
    """Return whether a store has its tables, which are created after the file."""
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Return whether a store has a table: one of an older version may lack it."""
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    return found is not None


def ring_position(connection: sqlite3.Connection, name: str, made_ns: int) -> RingPosition:
    """Return the position of a ring's reader in a store."""
    key = (name, made_ns)
    found = connection.execute(
        "SELECT read, dropped FROM rings WHERE name = ? AND made_ns = ?", key
    ).fetchone()
    if found is None:
        return RingPosition()
    texts = connection.execute(
        "SELECT number, texts.text FROM ring_texts JOIN texts ON texts.id = ring_texts.text"
        " WHERE name = ? AND made_ns = ?",
        key,
    ).fetchall()
    return RingPosition(read=found[0], dropped=found[1], texts=dict(texts))
