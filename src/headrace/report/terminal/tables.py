"""Which rows a frame, and a diagnosis meanwhile, are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.core.arrow_arrays import numbers, values_of
from headrace.observe.whatif.tables import Tables
from headrace.records.reading import Records
from headrace.records.recent import ended_ns, last_rows, recent

Read = Callable[[str, int, int], pa.Table]
"""Returns a table's rows since a moment in ns, and so many of the last ones in any case."""
_FEWEST_OF_A_RANK = 12
_FEWEST = {"system": 2, "loaders": 256, "processes": 1024}
_NEVER_NS = 2**62
_CLOCKS = ("steps", "system", "stacks", "process_usage")
_DIAGNOSED_NS = 60_000_000_000
_DIAGNOSED_STEPS = 40
_WHOLE = {"processes", "loaders"}


def reading(records: Records) -> Read:
    """Return how the tables of a run that goes on are read: from their ends."""
    return lambda name, since_ns, fewest: recent(records, name, since_ns, fewest=fewest)


def reading_whole(tables: Tables) -> Read:
    """Return how the tables of a run that is over are read."""
    return lambda name, since_ns, fewest: last_rows(
        tables.table(name), name, since_ns, fewest=fewest
    )


@dataclass(frozen=True, slots=True)
class Recent:
    """The last seconds of each table, and at least a few of the last rows.

    Attributes:
        read: How tables are read.
        since_ns: From when on.
        ranks: How many there are: each has a few of the last steps among the rows.
    """

    read: Read
    since_ns: int
    ranks: int = 1

    def table(self, name: str) -> pa.Table:
        """Return a table of `headrace.records.schema`, or `system`."""
        fewest = _FEWEST_OF_A_RANK * self.ranks if name == "steps" else _FEWEST.get(name, 0)
        return self.read(name, self.since_ns, fewest)


@dataclass(frozen=True, slots=True)
class BegunLate:
    """A run's tables as if its recording had begun at a moment.

    Attributes:
        read: How tables are read.
        since_ns: The moment.
    """

    read: Read
    since_ns: int

    def table(self, name: str) -> pa.Table:
        """Return a table of `headrace.records.schema`, or `system`."""
        table = self.read(name, 0 if name in _WHOLE else self.since_ns, 0)
        if name != "processes":
            return table
        # Else a rank that began an hour ago seems to have started for an hour.
        started = np.maximum(values_of(table.column("started_ns")), self.since_ns)
        place = table.column_names.index("started_ns")
        return table.set_column(place, table.schema.field(place), numbers(started, pa.int64()))


def newest_ns(read: Read) -> int:
    """Return when what was recorded last had ended; 0 where nothing was."""
    latest = [ended_ns(read(name, _NEVER_NS, 64), name) for name in _CLOCKS]
    return max((int(times.max()) for times in latest if len(times)), default=0)


def last_step_ns(read: Read) -> int | None:
    """Return when the last step ended; None where there was none."""
    ended = ended_ns(read("steps", _NEVER_NS, 64), "steps")
    return int(ended.max()) if len(ended) else None


def diagnosed(read: Read, until_ns: int, ranks: int) -> BegunLate:
    """Return what a run is diagnosed from while it goes on: a minute of it, or a few dozen steps.

    Args:
        read: How tables are read.
        until_ns: When what was recorded last had ended.
        ranks: How many there are.
    """
    since_ns = until_ns - _DIAGNOSED_NS
    steps = read("steps", since_ns, _DIAGNOSED_STEPS * ranks)
    if steps.num_rows:
        since_ns = min(since_ns, int(values_of(steps.column("start_ns")).min()))
    return BegunLate(read, since_ns)


def began_ns(tables: Tables) -> int | None:
    """Return when the first step that is there began; None where there is none."""
    steps = tables.table("steps")
    return int(values_of(steps.column("start_ns")).min()) if steps.num_rows else None
