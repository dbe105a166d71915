"""What all charts share: colours, the axis of time, and how a figure is put together.

Charts set no colour of text, grid or background: page.js does, for a light and a dark page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.observe.whatif.tables import Floats, Tables, columns

PHASE_COLOURS = {
    "data_wait": "#e8590c",
    "copy": "#9c5fd6",
    "forward": "#3b7dd8",
    "backward": "#7db3f2",
    "sync": "#e0a800",
    "optimizer": "#2a9d8f",
    "other": "#8d99a6",
}
"""Waits are warm, work is cool."""
TIME_MARGIN = {"l": 132, "r": 24, "t": 40, "b": 44}
"""Around charts over time, which stand below each other: a moment is at the same place in all."""
_SMALL_PART = 0.6
Layout = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The axis of time of all charts of a run: 0 is when its recording began.

    Attributes:
        began_ns: That moment, by the host's clock.
        ended_ns: The last moment that was recorded.
        steps_ns: When the first step began and the last one ended; None without steps.
    """

    began_ns: int
    ended_ns: int
    steps_ns: tuple[int, int] | None = None

    @property
    def unit(self) -> str:
        """The unit of the axis: s, min or h."""
        span_s = (self.ended_ns - self.began_ns) / 1e9
        return "s" if span_s < 600 else "min" if span_s < 5 * 3600 else "h"

    def read(self, times_ns: Any) -> Floats:
        """Return moments on the axis, in its unit."""
        per_unit = {"s": 1e9, "min": 60e9, "h": 3600e9}[self.unit]
        return np.asarray((np.asarray(times_ns, np.int64) - self.began_ns) / per_unit, np.float64)

    @property
    def is_cut(self) -> bool:
        """Whether charts show the steps alone at first: they are a small part of the time."""
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


def clock_of(tables: Tables) -> Clock:
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
    return Clock(
        began_ns=began_ns,
        ended_ns=max(ends, default=began_ns) + 1,
        steps_ns=(int(steps["start_ns"].min()), int((steps["start_ns"] + steps["wall_ns"]).max()))
        if len(steps["start_ns"])
        else None,
    )


def figure(traces: Sequence[Mapping[str, Any]], layout: Layout) -> Any:
    """Return a Plotly figure.

    Args:
        traces: Its traces, each with its type.
        layout: Its layout, over what all charts share.
    """
    import plotly.graph_objects as go  # heavy: only who draws pays

    shared = {
        "template": "none",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "margin": {"l": 64, "r": 32, "t": 8, "b": 44},
        "hoverlabel": {"namelength": -1},
    }
    return go.Figure(data=[dict(trace) for trace in traces], layout={**shared, **layout})


def empty(text: str) -> Any:
    """Return a figure that only says why there is nothing to see."""
    note = {"text": text, "showarrow": False, "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper"}
    return figure(
        [],
        {
            "height": 120,
            "annotations": [note],
            "xaxis": {"visible": False},
            "yaxis": {"visible": False},
        },
    )
