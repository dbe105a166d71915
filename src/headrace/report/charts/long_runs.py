"""The records of a run that is too long for charts to read each of its rows.

Charts of much time read totals over seconds or minutes (`step_totals` and the like) in place of the
rows that are added up in them; charts of a short span read rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.observe.whatif.tables import CachedTables, Columns, Tables, columns
from headrace.records.parquet_tables import arrow_schema
from headrace.records.row_totals import totals_table
from headrace.records.schema import TOTALS
from headrace.records.span_reader import SpanReader
from headrace.report.charts.base import TimeAxis
from headrace.report.span_tables import WHOLE_TABLES

MOST_ROWS = 120_000
"""Steps, waits and batches together that are read row by row."""
_SAMPLED = ("system", "process_usage")
_MEAN_TICKS = 4
_EVER_NS = 2**62
_TIMED = ("processes", "steps", "batches", "system")


@dataclass(frozen=True, slots=True)
class SpanRows:
    """The rows of a span of time, read from a long run's records.

    Of samples also the next ones: each describes the time before it.
    """

    reader: SpanReader
    from_ns: int
    to_ns: int
    has_totals: bool = False  # whether rows that are added up are left out, and their totals read

    def table(self, name: str) -> pa.Table:
        """Return a table of `headrace.records.schema`, or `system`."""
        if name in TOTALS and not self.has_totals:
            return pa.Table.from_batches([], arrow_schema(name))
        if name in WHOLE_TABLES:
            return self.reader.table(name, 0, _EVER_NS)
        to_ns = self.to_ns + (self._tick_ns(name) if name in _SAMPLED else 0)
        return self.reader.table(name, self.from_ns, to_ns, without_totals=self.has_totals)

    def _tick_ns(self, name: str) -> int:
        """Return the time in which the next samples come, at the latest."""
        bounds, count = self.reader.bounds_ns(name), self.reader.rows(name)
        if bounds is None or not count:
            return 0
        sources = max(self.reader.table("hosts", 0, 0).num_rows, 1) if name == "system" else 1
        return _MEAN_TICKS * (bounds[1] - bounds[0]) * sources // count


def totals_of(tables: Tables, name: str) -> Columns | None:
    """Return the totals that stand for rows which a table of a long run lacks; None: none do."""
    source = tables.source if isinstance(tables, CachedTables) else tables
    if not isinstance(source, SpanRows) or not source.has_totals:
        return None
    found = columns(tables, str(totals_table(name)))
    return found if found.count else None


def long_time_axis(reader: SpanReader) -> TimeAxis:
    """Return the axis of time of a run, without reading its tables."""
    bounds = {name: found for name in _TIMED if (found := reader.bounds_ns(name)) is not None}
    began_ns = min((first for first, _ in bounds.values() if first > 0), default=0)
    ended_ns = max((last for _, last in bounds.values()), default=began_ns) + 1
    return TimeAxis(began_ns=began_ns, ended_ns=ended_ns, steps_ns=bounds.get("steps"))


def latest_part_ns(reader: SpanReader, from_ns: int, to_ns: int, most: int = MOST_ROWS) -> int:
    """Return where the last part of a span begins that has so many rows at most."""
    begin_ns = from_ns
    while to_ns - begin_ns > 1 and (rows := reader.count(begin_ns, to_ns)) > most:
        begin_ns = max(to_ns - int((to_ns - begin_ns) * most / rows * 0.9), begin_ns + 1)
    return begin_ns
