"""The last rows of a table, read from its end: what a live view takes again and again."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.core.arrow_arrays import numbers, values_of
from headrace.records import store
from headrace.records.arrow import stored_batches, stored_schema
from headrace.records.layout import STORE
from headrace.records.reading import Records
from headrace.records.store import TABLE_NAMES

MOST_ROWS = 20_000
"""What one read takes at most; some 50 ms."""
_ENDED = {
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
}
"""When a row's matter was over: these columns, added up."""
# Rows are written up to 0.3 s late; rings are drained twice a second, in turn.
_DRAIN_NS = 1_000_000_000
_LATE_NS = 2_000_000_000  # what is added up over a second is told after it
_FIRST_LOOK, _LOOKED_AT = 256, 64
_TRIES, _PAUSE_S = 3, 0.01


def recent(
    records: Records, name: str, since_ns: int, *, fewest: int = 0, most: int = MOST_ROWS
) -> pa.Table:
    """Return the rows of a table that ended at a moment or later, in the order they came in.

    While the run is recorded only the end of the table is read; what came in since the last drain,
    up to half a second ago, still lies in rings and is left out. A table that is closed is read
    whole.

    Args:
        records: The attempt's records.
        name: The table's name; of those without times, `hosts` and `device_steps`, the last `most`
            rows come.
        since_ns: The moment, by the host's monotonic clock.
        fewest: So many of the last rows come in any case.
        most: More rows than this are not read: the moment is then a later one, the same for all
            processes that wrote the rows.

    Raises:
        RecordsError: There is no such table, or its file is broken or of a newer version.
    """
    for _ in range(_TRIES if name in TABLE_NAMES else 0):
        try:
            found = _of_stores(records, name, since_ns, fewest, most)
        except sqlite3.Error:  # it is closed at this moment, or else broken: `table` tells
            time.sleep(_PAUSE_S)
            continue
        if found:
            return pa.concat_tables(found, promote_options="default")
        break
    return last_rows(records.table(name), name, since_ns, fewest=fewest)


def last_rows(table: pa.Table, name: str, since_ns: int, *, fewest: int = 0) -> pa.Table:
    """Return the rows of a whole table that ended at a moment or later: see `recent`."""
    if name not in _ENDED:
        return table
    kept = ended_ns(table, name) >= since_ns
    kept[max(len(kept) - fewest, 0) :] = True
    return table.take(numbers(np.flatnonzero(kept).astype(np.int64), pa.int64()))


def ended_ns(table: pa.Table, name: str) -> NDArray[np.int64]:
    """Return when each row's matter was over, by the host's monotonic clock.

    Raises:
        KeyError: The table has no times, or there is none of that name.
    """
    total = np.zeros(table.num_rows, dtype=np.int64)
    for column in _ENDED[name]:
        total += values_of(table.column(column))
    return total


def _of_stores(
    records: Records, name: str, since_ns: int, fewest: int, most: int
) -> list[pa.Table]:
    found = []
    for path in sorted(records.folder.glob(f"*{STORE}")):
        with closing(store.open_to_read(path)) as connection:
            connection.execute("BEGIN")  # one moment for all that is asked of it
            if store.has_tables(connection):
                condition = _condition(connection, name, since_ns, fewest, most)
                batches = list(stored_batches(connection, name, condition))
                found.append(pa.Table.from_batches(batches, stored_schema(connection, name)))
    return found


def _condition(
    connection: sqlite3.Connection, name: str, since_ns: int, fewest: int, most: int
) -> str:
    """Return which rows are wanted, by their number first, so that no other row is touched."""
    (rows,) = connection.execute(f"SELECT COALESCE(MAX(rowid), 0) FROM {name}").fetchone()  # noqa: S608
    if name not in _ENDED:
        return f"t.rowid > {rows - most}"
    ended = " + ".join(f"t.{column}" for column in _ENDED[name])
    count = min(max(fewest, _FIRST_LOOK), most)
    while count < min(rows, most) and _latest(connection, name, rows - count) >= since_ns:
        count = min(2 * count, most)
    before = max(rows - count, 0)
    if before and count == most:
        # Processes' rows come in by turns: some of the time at which the rest begins is missing.
        since_ns = max(since_ns, _latest(connection, name, before) - _LATE_NS + _DRAIN_NS)
    wanted = f"{ended} >= {int(since_ns)} OR t.rowid > {rows - fewest}"
    return f"t.rowid > {before} AND ({wanted})"


def _latest(connection: sqlite3.Connection, name: str, before: int) -> int:
    """Return about when a row came in: what came in before it had ended by then."""
    ended = " + ".join(f"t.{column}" for column in _ENDED[name])
    (latest,) = connection.execute(
        f"SELECT MAX(ended) FROM (SELECT {ended} AS ended FROM {name} AS t "  # noqa: S608
        "WHERE t.rowid > ? ORDER BY t.rowid LIMIT ?)",
        (before, _LOOKED_AT),
    ).fetchone()
    return int(latest or 0) + _LATE_NS
