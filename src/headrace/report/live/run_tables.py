"""The records of a run at one moment, as its charts and sections read them.

Of a run of minutes they are read as a whole. Of a run of hours a chart reads the rows of the span
that it shows, or totals where these are too many, and the verdict is about the last minutes.
"""

from __future__ import annotations

import threading

from headrace.core.units import format_seconds
from headrace.observe.whatif.comparison import TimeSlice
from headrace.observe.whatif.tables import CachedTables, Tables
from headrace.records.reader import Records
from headrace.records.span_reader import SpanReader
from headrace.report.charts.base import ChartSpan, Span, TimeAxis, time_axis
from headrace.report.charts.long_runs import (
    MOST_ROWS,
    SpanRows,
    latest_part_ns,
    long_time_axis,
)
from headrace.report.span_tables import SpanTables

_EVER_NS = 2**62
_OF_SEVERAL_CHARTS = frozenset({"steps", "step_totals", "processes", "hosts"})
_MOST_DIAGNOSED = 20_000
"""Steps, waits and batches of a long run that a verdict is made from, in about a second."""


class RunTables:
    """The records at one moment; may be used by several threads.

    Args:
        records: The attempt's records.
        reader: Their reader, which knows the files of earlier moments.
    """

    def __init__(self, records: Records, reader: SpanReader) -> None:
        self.records = records
        self._reader = reader
        self._lock = threading.RLock()  # a reader is for one thread at a time
        self._span: tuple[tuple[int, int], CachedTables] | None = None  # read last
        rows = reader.count(0, _EVER_NS)
        self._whole = None if rows > MOST_ROWS else CachedTables(records)
        self.axis: TimeAxis = (
            long_time_axis(reader) if self._whole is None else time_axis(self._whole)
        )

    @property
    def is_long(self) -> bool:
        """Whether the run has too many rows to read all of them."""
        return self._whole is None

    def over(self, span: ChartSpan) -> Tables:
        """Return what a chart over a span reads: at least the rows of the span, or totals."""
        if self._whole is not None:
            return self._whole
        key = (span.from_ns, span.to_ns)
        with self._lock:
            if self._span is None or self._span[0] != key:
                self._span = None  # its memory is free before that of the next one is taken
                has_totals = self._reader.count(*key) > MOST_ROWS
                self._span = key, CachedTables(SpanRows(self._reader, *key, has_totals))
            return self._span[1]

    def let_go(self) -> None:
        """Let go of tables of a long run that hardly any other chart reads."""
        with self._lock:
            if self._span is not None:
                self._span[1].forget(but=_OF_SEVERAL_CHARTS)

    def latest(self, span: ChartSpan) -> tuple[Tables, str]:
        """Return the rows of a span, or of its end if it has too many, and a note if so."""
        if self._whole is not None:
            return _cut(self._whole, span), ""
        with self._lock:
            begin_ns = latest_part_ns(self._reader, span.from_ns, span.to_ns, _MOST_DIAGNOSED)
        rows = SpanRows(self._reader, begin_ns, span.to_ns)
        cut = CachedTables(SpanTables(CachedTables(rows), begin_ns, span.to_ns))
        if begin_ns == span.from_ns:
            return cut, ""
        return cut, (
            f"The run is long: verdict, tables and waits are about the last "
            f"{format_seconds((span.to_ns - begin_ns) / 1e9)} of this span. Drag over a chart to "
            "choose another one."
        )


def steps_within(records: Records, span: Span) -> CachedTables:
    """Return records of which steps, waits and batches are those within a span alone."""
    reader = SpanReader(records)
    part = ChartSpan.of(RunTables(records, reader).axis, span)
    rows = SpanRows(reader, part.from_ns, part.to_ns)
    return CachedTables(TimeSlice(rows, part.from_ns, part.to_ns))


def _cut(tables: Tables, span: ChartSpan) -> Tables:
    axis = span.axis
    if (span.from_ns, span.to_ns) == (axis.began_ns, axis.ended_ns):
        return tables
    return CachedTables(SpanTables(tables, span.from_ns, span.to_ns))
