"""Incremental reads of a running job's records: latest rows, and totals of training steps."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.core.arrow_arrays import column_values, numbers
from headrace.records import store, system_table
from headrace.records.layout import STORE, part_files
from headrace.records.parquet_tables import ParquetTable, stored_batches, stored_schema
from headrace.records.reader import Records
from headrace.records.schema import DEVICE_STEPS, PROCESSES, STEPS

MAX_ROWS = 20_000
"""Most rows of one read, some 50 ms."""
END_COLUMNS = {
    "processes": ("started_ns",),
    "loaders": ("created_ns",),
    "fetches": ("start_ns", "wait_ns"),
    "steps": ("start_ns", "wall_ns"),
    "batches": ("start_ns", "wall_ns"),
    "transforms": ("start_ns",),
    "stacks": ("start_ns",),
    "events": ("at_ns",),
    "process_usage": ("t_ns",),
    "system": ("t_ns",),
    "auxiliary_batches": ("start_ns", "wall_ns"),
    "auxiliary_transforms": ("start_ns",),
    "arrivals": ("start_ns", "wall_ns"),
    "slow_step_stacks": ("start_ns",),
    "step_totals": ("end_ns",),
    "fetch_totals": ("end_ns",),
    "batch_totals": ("end_ns",),
}
"""Columns of each table whose sum is the time at which what a row records had ended."""
BEGIN_COLUMNS = {
    **{name: ends[0] for name, ends in END_COLUMNS.items()},
    "step_totals": "start_ns",
    "fetch_totals": "start_ns",
    "batch_totals": "start_ns",
}
"""The column of each table with the time at which it had begun."""
# Rows are written up to 0.3 s late; rings are drained twice a second, in turn.
_DRAIN_NS = 1_000_000_000
_LATE_NS = 2_000_000_000  # rows of a second are written after it
_FIRST_READ_ROWS, _SAMPLED_ROWS = 256, 64
_TRIES, _PAUSE_S = 3, 0.01


def recent_rows(
    records: Records, name: str, since_ns: int, *, fewest: int = 0, most: int = MAX_ROWS
) -> pa.Table:
    """Return the rows of a table that ended at a time or later, in the order they were stored.

    Of a live run only the end of the table is read, without what is in rings since the last drain,
    up to half a second ago. A closed table is read completely. `hosts`, `device_steps`,
    `device_copies`, `code_folders` and `library_loaders` have no times: of them the last `most`
    rows are returned. Of `processes` the rows of ranks are returned whenever they began: those of
    workers that are started anew in each epoch are many, and come after them.

    Args:
        records: The attempt's records.
        name: The table's name.
        since_ns: The time, by the host's monotonic clock.
        fewest: How many of the last rows are returned in any case.
        most: Limit of rows; if exceeded, a later time is used, the same for all processes that
            wrote the rows.
    """
    for _ in range(_TRIES if name in system_table.TABLE_NAMES else 0):
        try:
            found = _read_stores(records, name, since_ns, fewest, most)
        except sqlite3.Error:  # being closed, or broken: `table` finds out
            time.sleep(_PAUSE_S)
            continue
        if found:
            return pa.concat_tables(found, promote_options="default")
        break
    return rows_since(records.table(name), name, since_ns, fewest=fewest)


def rows_since(table: pa.Table, name: str, since_ns: int, *, fewest: int = 0) -> pa.Table:
    """Return the rows of a whole table that ended at a time or later: see `recent_rows`."""
    if name not in END_COLUMNS:
        return table
    is_recent = row_ends_ns(table, name) >= since_ns
    is_recent[max(len(is_recent) - fewest, 0) :] = True
    if name == PROCESSES.name:
        is_recent |= column_values(table.column("worker")) < 0
    return table.take(numbers(np.flatnonzero(is_recent).astype(np.int64), pa.int64()))


_NEVER_NS = 2**62


def recorded_rank_count(records: Records) -> int:
    """Return how many ranks have begun to record, 0 if none has; raises RecordsError.

    A launcher knows only the ranks that it starts itself, not those that a script does.
    """
    ranks = recent_rows(records, PROCESSES.name, _NEVER_NS).column("rank")
    return len(np.unique(column_values(ranks)))


def row_ends_ns(table: pa.Table, name: str) -> NDArray[np.int64]:
    """Return when what each row records had ended, in ns; KeyError: the table has no times."""
    total = np.zeros(table.num_rows, dtype=np.int64)
    for column in END_COLUMNS[name]:
        total += column_values(table.column(column))
    return total


def row_spans_ns(table: pa.Table, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return when what each row records began and ended, in ns; None: the table has no times."""
    if name not in END_COLUMNS:
        return None
    return column_values(table.column(BEGIN_COLUMNS[name])), row_ends_ns(table, name)


def _read_stores(
    records: Records, name: str, since_ns: int, fewest: int, most: int
) -> list[pa.Table]:
    found = []
    for path in sorted(records.folder.glob(f"*{STORE}")):
        with closing(store.open_read_only(path)) as connection:
            connection.execute("BEGIN")  # one snapshot for all queries
            if store.has_tables(connection):
                condition = _row_condition(connection, name, since_ns, fewest, most)
                batches = list(stored_batches(connection, name, condition))
                found.append(pa.Table.from_batches(batches, stored_schema(connection, name)))
    return found


def _row_condition(
    connection: sqlite3.Connection, name: str, since_ns: int, fewest: int, most: int
) -> str:
    """Return the SQL condition for rows, with rowid first, so that SQLite reads no others."""
    (rows,) = connection.execute(f"SELECT COALESCE(MAX(rowid), 0) FROM {name}").fetchone()  # noqa: S608
    if name not in END_COLUMNS:
        return f"t.rowid > {rows - most}"
    ended = " + ".join(f"t.{column}" for column in END_COLUMNS[name])
    count = min(max(fewest, _FIRST_READ_ROWS), most)
    while count < min(rows, most) and _latest_end_ns(connection, name, rows - count) >= since_ns:
        count = min(2 * count, most)
    before = max(rows - count, 0)
    if before and count == most:
        # Rows of processes are interleaved: those of the first moments are incomplete.
        since_ns = max(since_ns, _latest_end_ns(connection, name, before) - _LATE_NS + _DRAIN_NS)
    is_recent = f"{ended} >= {int(since_ns)} OR t.rowid > {rows - fewest}"
    wanted = f"t.rowid > {before} AND ({is_recent})"
    return f"{wanted} OR t.worker < 0" if name == PROCESSES.name else wanted


def _latest_end_ns(connection: sqlite3.Connection, name: str, before: int) -> int:
    """Return about when a row was stored: what rows before it record had ended by then."""
    ended = " + ".join(f"t.{column}" for column in END_COLUMNS[name])
    (latest,) = connection.execute(
        f"SELECT MAX(ended) FROM (SELECT {ended} AS ended FROM {name} AS t "  # noqa: S608
        "WHERE t.rowid > ? ORDER BY t.rowid LIMIT ?)",
        (before, _SAMPLED_ROWS),
    ).fetchone()
    return int(latest or 0) + _LATE_NS


# The collector's write-ahead log cannot be checkpointed during a read.
_ROWS_PER_READ = 200_000
# CROSS JOIN keeps SQLite from scanning all texts for each step.
_SUMS = """
SELECT GROUP_CONCAT(DISTINCT t.rank), COUNT(*), TOTAL(t.wall_ns), TOTAL(t.data_wait_ns),
    TOTAL(t.samples), TOTAL(t.samples < 0)
FROM steps AS t CROSS JOIN texts ON texts.id = t.kind
WHERE t.rowid > ? AND t.rowid <= ? AND t.step >= ? AND texts.text = 'train'
"""
_DEVICE_SUMS = """
SELECT TOTAL(t.device_wall_ns), TOTAL(t.device_data_wait_ns)
FROM device_steps AS t CROSS JOIN texts ON texts.id = t.kind
WHERE t.rowid > ? AND t.rowid <= ? AND t.step >= ? AND texts.text = 'train'
"""


@dataclass(slots=True)
class _ReadRows:
    """How far a table of a store has been read.

    Its rows are numbered from 1 on without a gap, and moved to parts in this order. So a row's
    number is known wherever the row is.
    """

    last: int = 0  # number of the last row that was read
    parts: int = 0  # parts that were looked at
    moved: int = 0  # number of the last row in these


@dataclass(slots=True)
class StepTotals:
    """Totals of the training steps of all ranks so far."""

    skipped: int = 0  # first steps of each rank, left out as warm-up
    ranks: set[int] = field(default_factory=set)  # that took steps
    steps: int = 0
    wall_ns: float = 0.0
    data_wait_ns: float = 0.0
    samples: float = 0.0
    uncounted: int = 0  # steps whose samples are unknown
    device_wall_ns: float = 0.0  # by the device's clock, where it is recorded
    device_wait_ns: float = 0.0
    _read: dict[tuple[str, str], _ReadRows] = field(default_factory=dict)  # by store and table

    @property
    def data_wait_share(self) -> float | None:
        """The share in which the script waits for data, 0 to 1; None without a step."""
        return self.data_wait_ns / self.wall_ns if self.wall_ns > 0 else None

    @property
    def accelerator_wait_share(self) -> float | None:
        """The share in which the accelerator does, as a verdict has it; None without a step.

        By the device's clock if known, which cannot wait longer for data than the script does.
        """
        share = self.data_wait_share
        if share is None or self.device_wall_ns <= 0:
            return share
        return min(self.device_wait_ns / self.device_wall_ns, share)

    @property
    def samples_per_s(self) -> float | None:
        """The samples a second of all ranks together; None where some were not counted."""
        if self.uncounted or not self.samples or not self.wall_ns:
            return None
        return self.samples / self.wall_ns * 1e9 * len(self.ranks)

    def add_new(self, records: Records) -> None:
        """Add the steps stored since the last call, if live; raises RecordsError, sqlite3.Error."""
        for path in sorted(records.folder.glob(f"*{STORE}")):
            with closing(store.open_read_only(path)) as connection:
                if not store.has_tables(connection):
                    continue
                self._add_table(connection, path, STEPS.name)
                self._add_table(connection, path, DEVICE_STEPS.name)

    def _add_table(self, connection: sqlite3.Connection, path: Path, name: str) -> None:
        """Add the new rows of one table of a store, also those that it has moved to parts."""
        read = self._read.setdefault((path.name, name), _ReadRows())
        is_behind = True
        while is_behind:
            with connection:
                connection.execute("BEGIN")  # one snapshot of the parts' names and of the rows
                parts = list(part_files(connection, path, name))[read.parts :]
                is_behind = bool(parts) or self._add_stored(connection, name, read)
            for part in parts:
                self._add_part(part, name, read)

    def _add_stored(self, connection: sqlite3.Connection, name: str, read: _ReadRows) -> bool:
        """Add the next rows of a store's table, and return whether more follow."""
        (rows,) = connection.execute(f"SELECT COALESCE(MAX(rowid), 0) FROM {name}").fetchone()  # noqa: S608
        until = min(read.last + _ROWS_PER_READ, rows)
        if until <= read.last:
            return False
        which = (read.last, until, self.skipped)
        if name == DEVICE_STEPS.name:
            self._add_device_sums(*connection.execute(_DEVICE_SUMS, which).fetchone())
        else:
            ranks, *sums = connection.execute(_SUMS, which).fetchone()
            self._add_sums(map(int, ranks.split(",")) if ranks else (), *sums)
        read.last = until
        return bool(until < rows)

    def _add_part(self, path: Path, name: str, read: _ReadRows) -> None:
        """Add the rows of a table's next part that were not read while the store had them."""
        table = ParquetTable(path, name)
        known = max(read.last - read.moved, 0)  # of its rows, the first
        if known < table.count:
            self._add_rows(table, name, known)
        read.parts += 1
        read.moved += table.count
        read.last = max(read.last, read.moved)

    def _add_rows(self, table: ParquetTable, name: str, first: int) -> None:
        """Add the rows of a part from one on, counted from 0."""
        kinds: Any = table["kind"].chunk(0)  # columns of closed tables are one chunk
        texts: list[str] = kinds.dictionary.to_pylist()
        if "train" not in texts:
            return
        training = column_values(pa.chunked_array([kinds.indices])) == texts.index("train")
        counts = training & (column_values(table["step"]) >= self.skipped)
        counts[:first] = False

        def total(column: str) -> float:
            return float(column_values(table[column])[counts].sum())

        if name == DEVICE_STEPS.name:
            self._add_device_sums(total("device_wall_ns"), total("device_data_wait_ns"))
            return
        ranks = np.unique(column_values(table["rank"])[counts]).tolist()
        uncounted = (column_values(table["samples"])[counts] < 0).sum()
        self._add_sums(
            ranks, counts.sum(), total("wall_ns"), total("data_wait_ns"), total("samples"),
            uncounted,
        )  # fmt: skip

    def _add_sums(
        self, ranks: Iterable[int], steps: float, wall_ns: float, data_wait_ns: float,
        samples: float, uncounted: float,
    ) -> None:  # fmt: skip
        self.ranks.update(ranks)
        self.steps += int(steps)
        self.wall_ns += float(wall_ns)
        self.data_wait_ns += float(data_wait_ns)
        self.samples += float(samples)
        self.uncounted += int(uncounted)

    def _add_device_sums(self, wall_ns: float, wait_ns: float) -> None:
        self.device_wall_ns += float(wall_ns)
        self.device_wait_ns += float(wait_ns)
