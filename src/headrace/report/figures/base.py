"""The common parts of all charts: colours, the time axis, downsampling, and the figure itself.

Charts set no colour of text, grid or background: page.js does, for a light and a dark page. Many
values are pooled into few columns in a way that keeps short stalls visible.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from headrace.observe.whatif.tables import Floats, Ints, Tables, columns, covered_before

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
TIME_MARGIN = {"l": 132, "r": 24, "t": 40, "b": 44}
"""Margins of charts over time, equal so that a moment has the same position in all of them."""
_SMALL_PART = 0.6
Layout = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """The time axis of all charts of a run from the start of its recording, by the host's clock."""

    began_ns: int
    ended_ns: int
    steps_ns: tuple[int, int] | None = None  # of the first step's begin and the last one's end

    @property
    def unit(self) -> str:
        """The unit of the axis: s, min or h."""
        span_s = (self.ended_ns - self.began_ns) / 1e9
        return "s" if span_s < 600 else "min" if span_s < 5 * 3600 else "h"

    def read(self, times_ns: Any) -> Floats:
        """Return moments as positions on the axis, in its unit."""
        per_unit = {"s": 1e9, "min": 60e9, "h": 3600e9}[self.unit]
        return np.asarray((np.asarray(times_ns, np.int64) - self.began_ns) / per_unit, np.float64)

    @property
    def is_cut(self) -> bool:
        """Whether charts show only the steps at first: they are a small part of the time."""
        if self.steps_ns is None:
            return False
        return self.steps_ns[1] - self.steps_ns[0] < _SMALL_PART * (self.ended_ns - self.began_ns)

    def axis(self) -> dict[str, Any]:
        """Return the layout of the axis."""
        shown = (self.began_ns, self.ended_ns)
        if self.is_cut and self.steps_ns is not None:
            around = (self.steps_ns[1] - self.steps_ns[0]) // 10
            shown = (
                max(self.steps_ns[0] - around, self.began_ns),
                min(self.steps_ns[1] + around, self.ended_ns),
            )
        return {
            "title": {"text": f"time since recording began ({self.unit})"},
            "range": [float(moment) for moment in self.read(shown)],
            "zeroline": False,
        }


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


Figure: TypeAlias = dict[str, Any]
"""The traces ("data") and the layout of a Plotly figure: what `plotly.graph_objects.Figure` takes.
Making that takes longer than all else of the page, which needs only its JSON."""


def figure(traces: Sequence[Mapping[str, Any]], layout: Layout) -> Figure:
    """Return a Plotly figure; the layout is in addition to what all charts share."""
    shared = {
        "template": {"data": {"scatter": [{"type": "scatter"}]}},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "margin": {"l": 64, "r": 32, "t": 8, "b": 44},
        "hoverlabel": {"namelength": -1},
    }
    return {"data": [dict(trace) for trace in traces], "layout": {**shared, **layout}}


def figure_json(drawn: Figure) -> str:
    """Return a figure as JSON for Plotly's JavaScript, with arrays in its base64 format."""
    return json.dumps(drawn, default=_typed_array, separators=(",", ":"))


def _typed_array(values: Floats) -> Any:
    if not values.size:
        return []
    data = base64.b64encode(values.tobytes()).decode()
    shape = {"shape": str(values.shape)[1:-1]} if values.ndim > 1 else {}
    return {"dtype": values.dtype.str.lstrip("<"), "bdata": data, **shape}


def empty_figure(text: str) -> Figure:
    """Return a figure that only says why there is nothing to show."""
    note = {"text": text, "showarrow": False, "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper"}
    hidden = {"visible": False}
    return figure([], {"height": 120, "annotations": [note], "xaxis": hidden, "yaxis": hidden})


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
    columns = len(edges) - 1
    inside = (end > edges[0]) & (start < edges[-1]) & (end > start) & np.isfinite(values)
    start, end, values = start[inside], end[inside], values[inside]
    first = np.clip(np.searchsorted(edges, start, side="right") - 1, 0, columns - 1)
    last = np.clip(np.searchsorted(edges, end, side="left") - 1, first, columns - 1)
    spans = last - first + 1
    offsets = np.arange(spans.sum()) - np.repeat(np.cumsum(spans) - spans, spans)
    column = np.repeat(first, spans) + offsets
    value = np.repeat(values, spans)
    if how == "mean":
        overlap = np.minimum(np.repeat(end, spans), edges[column + 1]) - np.maximum(
            np.repeat(start, spans), edges[column]
        )
        weight = np.bincount(column, overlap, columns)
        total = np.bincount(column, overlap * value, columns)
        return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), np.nan)
    pooled = np.full(columns, np.inf if how == "min" else -np.inf)
    (np.minimum if how == "min" else np.maximum).at(pooled, column, value)
    return np.where(np.isfinite(pooled), pooled, np.nan)


def busy_shares(start: Floats, end: Floats, edges: Floats) -> Floats:
    """Return the share of each column that intervals cover, 0 to 1; NaN before and after all."""
    columns = len(edges) - 1
    if len(start) == 0:
        return np.full(columns, np.nan)
    shares = np.diff(covered_before(start, end, edges)) / np.diff(edges)
    alive = (edges[1:] > start.min()) & (edges[:-1] < end.max())
    return np.where(alive, np.clip(shares, 0.0, 1.0), np.nan)
