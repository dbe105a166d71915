"""A run's records cut to a span of time, from which verdict, tables and charts are made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.core.arrow_arrays import column_values, numbers
from headrace.observe.whatif.tables import Tables
from headrace.records.live_reader import row_spans_ns

WHOLE_TABLES = frozenset({"processes", "loaders"})
"""What the rows of other tables belong to, whenever it began."""


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
        table = self.tables.table(name)
        if name in WHOLE_TABLES:
            return begun_since(table, self.from_ns) if name == "processes" else table
        spans = row_spans_ns(table, name)
        if spans is None:
            return table
        begins, ends = spans
        is_inside = (ends >= self.from_ns) & (begins < self.to_ns)
        if is_inside.all():
            return table
        return table.take(numbers(np.flatnonzero(is_inside).astype(np.int64), pa.int64()))


def begun_since(processes: pa.Table, since_ns: int) -> pa.Table:
    """Return processes as if none had begun before a moment.

    Otherwise a rank's start would seem to have taken all the time since it began.
    """
    started = np.maximum(column_values(processes.column("started_ns")), since_ns)
    place = processes.column_names.index("started_ns")
    field = processes.schema.field(place)
    return processes.set_column(place, field, numbers(started, pa.int64()))
