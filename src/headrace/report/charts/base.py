"""The common parts of all charts: colours, the span of time, pooling, and a chart as JSON.

A chart is plain data: the page's script (`web/`) draws it, or `plotly_figures.py` in a notebook.
Many values are pooled into few columns in a way that keeps short stalls visible.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from headrace.observe.whatif.tables import Flags, Floats, Ints, Tables, columns, covered_before

PHASE_COLOURS = {
    "data_wait": "#e8590c",
    "copy": "#9c5fd6",
    "forward": "#3b7dd8",
    "backward": "#7db3f2",
    "sync": "#e0a800",
    "optimizer": "#2a9d8f",
    "other": "#8d99a6",
}
"""Warm colours for waits, cool ones for work."""
MAX_COLUMNS = 2000
"""At most the pixels across a wide screen, so that drawing leaves out no column."""
_SMALL_PART = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """The time axis of all charts of a run from the start of its recording, by the host's clock."""

    began_ns: int
    ended_ns: int
    steps_ns: tuple[int, int] | None = None  # of the first step's begin and the last one's end

    def seconds(self, moment_ns: float) -> float:
        """Return a moment as seconds since recording began."""
        return round((moment_ns - self.began_ns) / 1e9, 6)

    def read(self, times_ns: Any) -> Floats:
        """Return moments as seconds since recording began."""
        return np.asarray((np.asarray(times_ns, np.int64) - self.began_ns) / 1e9, np.float64)

    @property
    def limits(self) -> Span:
        """All of the run's time, in seconds since recording began."""
        return 0.0, self.seconds(self.ended_ns)

    @property
    def is_cut(self) -> bool:
        """Whether charts show only the steps at first: they are a small part of the time."""
        if self.steps_ns is None:
            return False
        return self.steps_ns[1] - self.steps_ns[0] < _SMALL_PART * (self.ended_ns - self.began_ns)

    @property
    def first_span(self) -> Span:
        """What charts show at first: all, or the steps alone if they are a small part of it."""
        if not self.is_cut or self.steps_ns is None:
            return self.limits
        around = (self.steps_ns[1] - self.steps_ns[0]) // 10
        return (
            self.seconds(max(self.steps_ns[0] - around, self.began_ns)),
            self.seconds(min(self.steps_ns[1] + around, self.ended_ns)),
        )


def time_axis(tables: Tables) -> TimeAxis:
    """Return the axis of time of a run."""
    begins: list[int] = []
    ends: list[int] = []
    for name, start, wall in (
        ("processes", "started_ns", None),
        ("steps", "start_ns", "wall_ns"),
        ("batches", "start_ns", "wall_ns"),
        ("system", "t_ns", None),
    ):
        rows = columns(tables, name)
        if len(rows.get(start, ())):
            known = rows[start][rows[start] > 0]
            end = rows[start] + (rows[wall] if wall else 0)
            begins += [int(known.min())] if len(known) else []
            ends.append(int(end.max()))
    began_ns = min(begins, default=0)
    steps = columns(tables, "steps")
    steps_ns = None
    if steps.count:
        steps_ns = int(steps["start_ns"].min()), int((steps["start_ns"] + steps["wall_ns"]).max())
    return TimeAxis(began_ns=began_ns, ended_ns=max(ends, default=began_ns) + 1, steps_ns=steps_ns)


Span: TypeAlias = tuple[float, float]
"""From and to, in seconds since recording began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSpan:
    """The part of a run's time that a chart is about, in so many columns."""

    axis: TimeAxis
    from_ns: int
    to_ns: int
    columns: int

    @classmethod
    def of(cls, axis: TimeAxis, span: Span | None = None, columns: int = MAX_COLUMNS) -> ChartSpan:
        """Return a span within the axis; None: all of it."""
        from_ns, to_ns = axis.began_ns, axis.ended_ns
        if span is not None:
            from_ns, to_ns = (
                int(np.clip(axis.began_ns + moment_s * 1e9, axis.began_ns, axis.ended_ns))
                for moment_s in span
            )
        return cls(axis=axis, from_ns=from_ns, to_ns=max(to_ns, from_ns + 1), columns=columns)

    @property
    def seconds(self) -> Span:
        """The span in seconds since recording began."""
        return self.axis.seconds(self.from_ns), self.axis.seconds(self.to_ns)

    def in_columns(self, columns: int) -> ChartSpan:
        """Return the same span in another number of columns."""
        return replace(self, columns=columns)

    def edges(self) -> Floats:
        """Return the edges of the columns, one more than there are columns."""
        return np.linspace(self.from_ns, self.to_ns, self.columns + 1)

    def overlaps(self, start_ns: Any, end_ns: Any) -> Flags:
        """Return which of some intervals reach into the span."""
        return np.asarray((end_ns > self.from_ns) & (start_ns < self.to_ns))


class Chart:
    """A chart as data: its subclasses are frozen dataclasses, `kind` says how it is drawn."""

    __slots__ = ()
    kind: ClassVar[str]


def chart_json(chart: Chart) -> str:
    """Return a chart as JSON: arrays of numbers in base64, unknown values of a list as null."""
    return json.dumps(chart, default=_plain_data, separators=(",", ":"), allow_nan=False)


def _plain_data(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        shape = {"shape": list(value.shape)} if value.ndim > 1 else {}
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"dtype": value.dtype.name, "data": data, **shape}
    named = {"kind": value.kind} if isinstance(value, Chart) else {}
    return named | {each.name: getattr(value, each.name) for each in fields(value)}


Pooling = Literal["mean", "min", "max"]
"""Waits are pooled by max and busy shares by min, so that the worst moment of a column shows."""


def group_offsets(count: int, most: int) -> Ints:
    """Return the starts of groups of neighbours, at most `most`; sizes differ by one at most."""
    groups = min(count, most)
    return np.arange(groups, dtype=np.int64) * count // max(groups, 1)


def pool_groups(values: Floats, starts: Ints, how: Pooling) -> Floats:
    """Return one value for each group of neighbours; see `group_offsets` for their starts."""
    if len(starts) == 0:
        return np.zeros(0)
    if how == "mean":
        counts = np.diff(np.append(starts, len(values)))
        return np.asarray(np.add.reduceat(values, starts) / counts)
    reduce: Callable[..., Floats] = (np.minimum if how == "min" else np.maximum).reduceat
    return np.asarray(reduce(values, starts))


def pool_intervals(
    start: Floats, end: Floats, values: Floats, edges: Floats, how: Pooling
) -> Floats:
    """Return one value for each column of time, from values that hold over intervals.

    `edges` are the columns', ascending. "mean" weighs by time; "min" and "max" take the worst value
    at any moment of the column, however short. Unknown values are NaN, as are columns without any.
    """
    return IntervalColumns(start, end, edges).pooled(values, how)


class IntervalColumns:
    """Which columns of time some intervals reach into, for one or several series of their values.

    Args:
        start: When each interval begins.
        end: When it ends.
        edges: The edges of the columns, ascending.
    """

    def __init__(self, start: Floats, end: Floats, edges: Floats) -> None:
        self._count = count = len(edges) - 1
        self._inside = np.flatnonzero((end > edges[0]) & (start < edges[-1]) & (end > start))
        start, end = start[self._inside], end[self._inside]
        first = np.clip(np.searchsorted(edges, start, side="right") - 1, 0, count - 1)
        last = np.clip(np.searchsorted(edges, end, side="left") - 1, first, count - 1)
        self._spans = spans = last - first + 1
        offsets = np.arange(spans.sum()) - np.repeat(np.cumsum(spans) - spans, spans)
        self._column = column = np.repeat(first, spans) + offsets
        begins = np.maximum(np.repeat(start, spans), edges[column])
        self._overlap = np.minimum(np.repeat(end, spans), edges[column + 1]) - begins

    def pooled(self, values: Floats, how: Pooling) -> Floats:
        """Return a series, one value for each interval, as one for each column."""
        value = np.repeat(values[self._inside], self._spans)
        is_known = np.isfinite(value)
        if is_known.all():
            column, overlap = self._column, self._overlap
        else:
            value, column = value[is_known], self._column[is_known]
            overlap = self._overlap[is_known]
        if how == "mean":
            weight = np.bincount(column, overlap, self._count)
            total = np.bincount(column, overlap * value, self._count)
            return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), np.nan)
        pooled = np.full(self._count, np.inf if how == "min" else -np.inf)
        (np.minimum if how == "min" else np.maximum).at(pooled, column, value)
        return np.where(np.isfinite(pooled), pooled, np.nan)


def sample_starts(ends: Floats, begin: float) -> Floats:
    """Return when the time began that each sample describes, which lasted until it was taken.

    That is when the one before it was taken. The first one describes at most twice as much time as
    the next: its host may have come later than the others. A single one does from `begin` on.
    """
    if len(ends) < 2:
        return np.asarray(np.minimum(ends - 1.0, begin))
    return np.append(ends[0] - 2.0 * (ends[1] - ends[0]), ends[:-1])


def busy_shares(start: Floats, end: Floats, edges: Floats) -> Floats:
    """Return the share of each column that intervals cover, 0 to 1; NaN before and after all."""
    columns = len(edges) - 1
    if len(start) == 0:
        return np.full(columns, np.nan)
    shares = np.diff(covered_before(start, end, edges)) / np.diff(edges)
    alive = (edges[1:] > start.min()) & (edges[:-1] < end.max())
    return np.where(alive, np.clip(shares, 0.0, 1.0), np.nan)
