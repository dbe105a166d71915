"""The timeline: what each step of each rank spent its time on."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.observe.whatif.tables import Columns, Floats, Ints, Tables, chosen, columns, length
from headrace.records.schema import PHASES
from headrace.report.figures.drawing import PHASE_COLOURS, TIME_MARGIN, Clock, clock_of, figure
from headrace.report.pooling import How, group_starts, pool_groups
from headrace.report.telling import phase_name

MOST_COLUMNS = 2000
"""More steps than this are pooled."""
MOST_RANKS = 8
"""Of more ranks, those that wait for data the longest are shown."""
_POOLED: dict[str, How] = {"data_wait": "max", "sync": "max", "other": "max"}
"""Phases in which a step can stall: the longest of a column is shown; of others, the mean."""
_MOST_SHADES = 60
_ROW_PX, _ONLY_ROW_PX = 150, 260
_TALL = 5.0
"""The axis ends at so many times an ordinary step, or the one long step would flatten all."""


def timeline(tables: Tables) -> Any | None:
    """Return the phases of every step over time, a row a rank; None without steps.

    Args:
        tables: The run's records.
    """
    steps = columns(tables, "steps")
    if length(steps) == 0:
        return None
    clock, ranks = clock_of(tables), shown_ranks(steps)
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "height": 90 + (_ROW_PX * len(ranks) if len(ranks) > 1 else _ONLY_ROW_PX),
        "xaxis": {**clock.axis(), "anchor": "free", "position": 0.0},
        "hovermode": "x",
        "legend": {
            "orientation": "h",
            "y": 1.0,
            "yanchor": "bottom",
            "x": 0,
            "traceorder": "normal",
        },
        "margin": TIME_MARGIN,
        "shapes": _evaluations(chosen(steps, steps["rank"] == ranks[0]), clock),
    }
    top = axis_top_ms(steps)
    for row, rank in enumerate(ranks):
        of_rank = chosen(steps, steps["rank"] == rank)
        of_rank = chosen(of_rank, np.argsort(of_rank["start_ns"], kind="stable"))
        axis = f"y{row + 1}" if row else "y"
        traces += _traces(of_rank, clock, axis, first=row == 0)
        height = 1.0 / len(ranks)
        low = 1.0 - (row + 1) * height
        title = "ms a step" if len(ranks) == 1 else f"rank {rank}<br>ms a step"
        layout[f"yaxis{row + 1}" if row else "yaxis"] = {
            "title": {"text": title, "font": {"size": 11}},
            "domain": [low + (0.12 * height if row < len(ranks) - 1 else 0.0), low + height],
            "range": [0.0, top],
            "nticks": 5,
        }
    return figure(traces, layout)


def shown_ranks(steps: Columns) -> list[int]:
    """Return the ranks that a timeline shows, in their order."""
    waits = {
        int(rank): float(steps["data_wait_ns"][steps["rank"] == rank].sum())
        for rank in np.unique(steps["rank"])
    }
    return sorted(sorted(waits, key=lambda rank: -waits[rank])[:MOST_RANKS])


def axis_top_ms(steps: Columns) -> float:
    """Return where the axis ends: the longest step, or far above an ordinary one."""
    wall_ms = steps["wall_ns"][steps["kind"] == "train"].astype(np.float64) / 1e6
    if len(wall_ms) == 0:
        wall_ms = steps["wall_ns"].astype(np.float64) / 1e6
    ordinary = float(np.percentile(wall_ms, 90))
    return 1.05 * max(min(float(wall_ms.max()), _TALL * ordinary), 1e-3)


def steps_above(steps: Columns) -> int:
    """Return how many steps are longer than the axis."""
    return int((steps["wall_ns"] / 1e6 > axis_top_ms(steps)).sum())


def steps_a_column(steps: Columns) -> int:
    """Return how many steps of a rank one column stands for."""
    most = max(np.unique(steps["rank"], return_counts=True)[1], default=0)
    return int(-(-most // MOST_COLUMNS))


def _traces(steps: Columns, clock: Clock, axis: str, *, first: bool) -> list[dict[str, Any]]:
    groups = group_starts(length(steps), MOST_COLUMNS)
    last = np.append(groups[1:], length(steps)) - 1
    end_ns = steps["start_ns"] + steps["wall_ns"]
    begins, ends = steps["start_ns"][groups], end_ns[last]
    x, value_at = _outline(clock.read(begins), clock.read(ends))
    traces = []
    for phase in PHASES:
        values_ms = np.maximum(steps[f"{phase}_ns"].astype(np.float64), 0.0) / 1e6
        if not values_ms.any():
            continue
        pooled = np.append(pool_groups(values_ms, groups, _POOLED.get(phase, "mean")), 0.0)
        traces.append(
            {
                "type": "scatter", "mode": "lines", "x": x.astype(np.float32).round(4),
                "y": pooled[value_at].astype(np.float32).round(3), "name": phase_name(phase),
                "stackgroup": axis, "yaxis": axis, "legendgroup": phase, "showlegend": first,
                "line": {"shape": "hv", "width": 0}, "fillcolor": PHASE_COLOURS[phase],
                "hovertemplate": "%{y:,.3~g} ms",
            }
        )  # fmt: skip
    return traces


def _outline(begins: Floats, ends: Floats) -> tuple[Floats, Ints]:
    """Return moments, and which column holds from each on: the last place stands for none."""
    nothing = len(begins)
    gap = np.append(begins[1:] > ends[:-1] + 1e-9, True)
    x = np.column_stack((begins, ends)).ravel()
    value_at = np.column_stack((np.arange(nothing), np.full(nothing, nothing))).ravel()
    kept = np.column_stack((np.ones(nothing, dtype=np.bool_), gap)).ravel()
    return x[kept], value_at[kept]


def _evaluations(steps: Columns, clock: Clock) -> list[dict[str, Any]]:
    """Return grey shades behind the stretches in which a rank evaluated."""
    evaluating = steps["kind"] == "eval"
    changes = np.flatnonzero(np.diff(np.append(np.append(0, evaluating.astype(np.int8)), 0)))
    begins, ends = changes[::2], changes[1::2] - 1
    if len(begins) > _MOST_SHADES:
        return []
    left = clock.read(steps["start_ns"][begins])
    right = clock.read((steps["start_ns"] + steps["wall_ns"])[ends])
    return [
        {
            "type": "rect", "xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "below",
            "x0": float(x0), "x1": float(x1), "line": {"width": 0},
            "fillcolor": "rgba(128,128,128,0.18)",
        }
        for x0, x1 in zip(left, right, strict=True)
    ]  # fmt: skip
