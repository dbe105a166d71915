"""A part of a run's time, as if it were all that was recorded."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.observe.whatif.tables import Tables

_TIMED = {"steps": "wall_ns", "fetches": "wait_ns", "batches": "wall_ns", "arrivals": "wall_ns"}
"""Tables of which only what began and ended in that time counts, and the column of how long that
took."""


class Within:
    """The records of a run between two moments.

    Args:
        tables: All of them.
        begin_ns: From when, by the host's monotonic clock; None: from the run's begin.
        end_ns: Until when; None: to its end.
    """

    def __init__(
        self, tables: Tables, *, begin_ns: int | None = None, end_ns: int | None = None
    ) -> None:
        self._tables = tables
        self._begin_ns = begin_ns
        self._end_ns = end_ns

    def table(self, name: str) -> pa.Table:
        """Return a table of `headrace.records.schema`, or `system`."""
        found = self._tables.table(name)
        if name not in _TIMED:
            return found
        if self._begin_ns is not None:
            found = found.filter(pc.field("start_ns") >= self._begin_ns)
        if self._end_ns is not None:
            found = found.filter(pc.field("start_ns") + pc.field(_TIMED[name]) <= self._end_ns)
        return found
