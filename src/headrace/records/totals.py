"""What the training steps of a running job add up to, each row read once."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.core.arrow_arrays import values_of
from headrace.records import store
from headrace.records.closed import ClosedTable
from headrace.records.layout import STORE
from headrace.records.parts import part_files
from headrace.records.reading import Records
from headrace.records.schema import STEPS

_AT_ONCE = 200_000  # rows; meanwhile the collector's log of changes cannot be written back
# CROSS JOIN keeps SQLite from looking through all texts for each step.
_SUMS = """
SELECT COUNT(*), TOTAL(t.wall_ns), TOTAL(t.data_wait_ns)
FROM steps AS t CROSS JOIN texts ON texts.id = t.kind
WHERE t.rowid > ? AND t.rowid <= ? AND t.step >= ? AND texts.text = 'train'
"""


@dataclass(slots=True)
class StepTotals:
    """The training steps of all ranks so far.

    Attributes:
        skipped: Steps at the begin of each rank that are left out, as its warm-up.
        steps: How many steps were added up.
        wall_ns: How long they took.
        data_wait_ns: How long of it the ranks waited for data.
    """

    skipped: int = 0
    steps: int = 0
    wall_ns: float = 0.0
    data_wait_ns: float = 0.0
    _read: dict[str, int] = field(default_factory=dict)

    @property
    def data_wait_share(self) -> float | None:
        """Data wait over step time, 0 to 1; None where there is no step yet."""
        return self.data_wait_ns / self.wall_ns if self.wall_ns > 0 else None

    def add_new(self, records: Records) -> None:
        """Add the steps that were stored since the last call; of closed records nothing is read.

        Raises:
            RecordsError: A newer version wrote them.
            sqlite3.Error: The store is broken, or closed at this moment.
        """
        for path in sorted(records.folder.glob(f"*{STORE}")):
            with closing(store.open_to_read(path)) as connection:
                if not store.has_tables(connection):
                    continue
                if path.name not in self._read:
                    # What is moved out later was read before: it is the oldest of many rows.
                    self._read[path.name] = 0
                    for part in part_files(connection, path, STEPS.name):
                        self._add_part(part)
                self._add(connection, path.name)

    def _add_part(self, path: Path) -> None:
        table = ClosedTable(path, STEPS.name)
        kinds: Any = table["kind"].chunk(0)  # closed tables' columns are in one piece
        words: list[str] = kinds.dictionary.to_pylist()
        if "train" not in words:
            return
        training = values_of(pa.chunked_array([kinds.indices])) == words.index("train")
        counts = training & (values_of(table["step"]) >= self.skipped)
        self.steps += int(counts.sum())
        self.wall_ns += float(values_of(table["wall_ns"])[counts].sum())
        self.data_wait_ns += float(values_of(table["data_wait_ns"])[counts].sum())

    def _add(self, connection: sqlite3.Connection, name: str) -> None:
        (rows,) = connection.execute("SELECT COALESCE(MAX(rowid), 0) FROM steps").fetchone()
        while (read := self._read.get(name, 0)) < rows:
            until = min(read + _AT_ONCE, rows)
            found = connection.execute(_SUMS, (read, until, self.skipped)).fetchone()
            self.steps += int(found[0])
            self.wall_ns += found[1]
            self.data_wait_ns += found[2]
            self._read[name] = until
