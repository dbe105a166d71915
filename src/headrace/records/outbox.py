"""The outbox of a host whose records another host keeps: its rows, until they have been sent.

The collector of such a host writes here what it would write to its store, as lines of JSON. The
host's agent sends them to the job's driver, and removes them once the driver has them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.records.layout import STORE
from headrace.records.schema import RowLimits, Table
from headrace.records.store import RecordStore

_NAME = "outbox"
_CREATE = (
    f"CREATE TABLE IF NOT EXISTS {_NAME}"
    " (number INTEGER PRIMARY KEY AUTOINCREMENT, line TEXT NOT NULL)"
)
_WAIT_S = 5.0  # for the other of the two processes that write it


@dataclass(frozen=True, slots=True)
class SentLine:
    """One line of an outbox; see `OutboxStore`."""

    number: int  # from 1 on, without gaps
    text: str


class OutboxStore(RecordStore):
    """A store whose rows go to another host; the positions in the rings stay.

    A line is an object: `tables` has the rows of each table by its number, `system` the columns and
    rows of `system`. It is written in the transaction in which the rings' positions change.
    """

    def __init__(self, path: Path, limits: RowLimits) -> None:
        super().__init__(path, limits)
        self.connection.execute(f"PRAGMA busy_timeout = {int(_WAIT_S * 1000)}")
        self._rows: dict[str, list[Sequence[Any]]] = {}
        self._system: list[tuple[Sequence[str], Sequence[float | None]]] = []
        with self.transaction():
            self.connection.execute(_CREATE)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all changes of the block, with the line of its rows; or roll all back."""
        self._rows, self._system = {}, []
        with super().transaction():
            yield
            if self._rows or self._system:
                line = json.dumps({"tables": self._rows, "system": self._system})
                self.connection.execute(f"INSERT INTO {_NAME} (line) VALUES (?)", (line,))  # noqa: S608
        self._rows, self._system = {}, []

    def add(self, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add rows to the line of this transaction."""
        if rows:
            self._rows.setdefault(str(table.number), []).extend(rows)

    def declare_system(self, columns: Sequence[str]) -> None:
        """Do nothing: the host that keeps the records learns of columns by their rows."""

    def add_system(self, columns: Sequence[str], values: Sequence[float | None]) -> None:
        """Add a row of `system` to the line of this transaction."""
        self._system.append((columns, values))

    def roll_up(self) -> None:
        """Do nothing: rows are merged where they are kept."""

    def move_out(self) -> None:
        """Do nothing: rows are moved where they are kept."""

    def is_empty(self, table: Table) -> bool:
        """Return whether nothing was ever put here, of any table."""
        del table
        found = self.connection.execute("SELECT 1 FROM sqlite_sequence LIMIT 1").fetchone()
        return found is None


def unsent_lines(folder: Path, after: int, most_bytes: int) -> list[SentLine]:
    """Return lines that follow a number, and remove those up to it, which have arrived.

    Args:
        folder: The host's records folder; it need not have an outbox yet.
        after: The number of the last line that has arrived; 0: none has.
        most_bytes: Their size, together; one line is returned in any case.
    """
    stores = list(folder.glob(f"*{STORE}"))
    if not stores:
        return []
    found: list[SentLine] = []
    with suppress(sqlite3.Error), closing(_open(stores[0])) as connection:  # it may be being made
        if after:
            with suppress(sqlite3.Error):  # on a full disk they take room a while longer
                connection.execute(f"DELETE FROM {_NAME} WHERE number <= ?", (after,))  # noqa: S608
        size = 0
        for number, text in connection.execute(
            f"SELECT number, line FROM {_NAME} WHERE number > ? ORDER BY number",  # noqa: S608
            (after,),
        ):
            size += len(text)
            if found and size > most_bytes:
                break
            found.append(SentLine(number, text))
    return found


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=_WAIT_S)
    connection.isolation_level = None
    return connection
