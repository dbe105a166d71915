"""A run's records cut to a span of time, from which verdict, tables and charts are made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.core.arrow_arrays import column_values, numbers
from headrace.observe.whatif.offload_stats import CORES_EVENT, LOADER_EVENT
from headrace.observe.whatif.tables import Flags, Ints, Tables
from headrace.records.live_reader import row_spans_ns

WHOLE_TABLES = frozenset({"processes", "loaders", "events"})
"""What the rows of other tables belong to, whenever it began, and events, after which something may
hold for the rest of the run."""


@dataclass(frozen=True, slots=True)
class SpanTables:
    """Tables as if recording had begun and ended with a span of time.

    Rows that reach into the span count as a whole.
    """

    tables: Tables
    from_ns: int
    to_ns: int

    def table(self, name: str) -> pa.Table:
        """Return a table of `headrace.records.schema`, or `system`."""
        table = as_if_begun(self.tables.table(name), name, self.from_ns)
        spans = None if name == "loaders" else row_spans_ns(table, name)
        if spans is None:
            return table
        begins, ends = spans
        return _rows_where(table, (ends >= self.from_ns) & (begins < self.to_ns))


def as_if_begun(table: pa.Table, name: str, since_ns: int) -> pa.Table:
    """Return a table with what happened before a moment as if it had happened then.

    Of processes all: otherwise a rank's start would seem to have taken all the time since it began.
    Of events those that say what still holds then; the others before it are left out. Other tables
    are returned as they are.
    """
    if name == "events":
        table = _rows_where(table, _holds_since(table, since_ns))
    column = {"processes": "started_ns", "events": "at_ns"}.get(name)
    if column is None:
        return table
    moments: Ints = np.maximum(column_values(table.column(column)), since_ns)
    place = table.column_names.index(column)
    return table.set_column(place, table.schema.field(place), numbers(moments, pa.int64()))


def _holds_since(events: pa.Table, since_ns: int) -> Flags:
    """Return which events are not before a moment, or say what still holds then.

    Which loaders auxiliary hosts make batches for, and on how many of their cores, is recorded as
    it changes, by each rank.
    """
    at_ns = column_values(events.column("at_ns"))
    holds: Flags = at_ns >= since_ns
    kinds = np.array(events.column("kind").to_pylist(), dtype=object)
    last: dict[tuple[object, ...], int] = {}
    for place in np.flatnonzero(~holds & np.isin(kinds, (LOADER_EVENT, CORES_EVENT))).tolist():
        row = {name: events.column(name)[place].as_py() for name in ("rank", "text", "value")}
        loader_or_host = row["value"] if kinds[place] == LOADER_EVENT else row["text"]
        key = kinds[place], row["rank"], loader_or_host
        if key not in last or at_ns[place] >= at_ns[last[key]]:
            last[key] = place
    holds[list(last.values())] = True
    return holds


def _rows_where(table: pa.Table, wanted: Flags) -> pa.Table:
    if wanted.all():
        return table
    return table.take(numbers(np.flatnonzero(wanted).astype(np.int64), pa.int64()))
