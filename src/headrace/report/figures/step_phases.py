"""Charts of where steps' time goes: each rank's mean step, every step over time, waits for data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.observe.whatif.measured_pipeline import main_loader
from headrace.observe.whatif.tables import Columns, Floats, Ints, Tables, columns
from headrace.observe.whatif.train_steps import DeviceSteps, TrainSteps, read_steps
from headrace.records.schema import PHASES
from headrace.report.figures.base import (
    PHASE_COLOURS,
    TIME_MARGIN,
    Figure,
    Pooling,
    TimeAxis,
    figure,
    group_offsets,
    pool_groups,
    time_axis,
)
from headrace.report.formatting import format_number, phase_name

_MAX_BAR_RANKS = 64
_LEGEND_ABOVE = {"orientation": "h", "y": 1.0, "yanchor": "bottom"}


def phase_bars(tables: Tables) -> Figure | None:
    """Return the mean training step of each rank, split into phases; None without such steps.

    Without an optimizer, batches are steps. Warm-up steps do not count. If phases by the
    accelerator's own clock were recorded, a rank has a second bar with these.
    """
    steps = read_steps(tables, any_kind=True)
    if not steps.ranks:
        return None
    bars: dict[str, TrainSteps | DeviceSteps] = {}
    for rank in steps.ranks[:_MAX_BAR_RANKS]:
        own = bars[f"rank {rank}"] = steps.of(steps.rows["rank"] == rank)
        if own.device is not None:
            bars[f"rank {rank}, accelerator"] = own.device
    walls_ms = [max(float(bar.wall_ns.mean() / 1e6), 1e-9) for bar in bars.values()]
    spent_ms = {
        phase: [float(bar.phase_ns(phase).mean() / 1e6) for bar in bars.values()]
        for phase in PHASES
    }
    traces = phase_traces(list(bars), walls_ms, spent_ms)
    wide = {} if steps.device is None else {"margin": {"l": 132, "r": 32, "t": 8, "b": 44}}
    return figure(
        traces,
        {
            "height": 120 + 36 * len(bars),
            "barmode": "stack",
            "bargap": 0.3,
            "xaxis": {"title": {"text": "mean time of a step (ms)"}, "zeroline": False},
            "yaxis": {"autorange": "reversed", "type": "category"},
            "legend": {**_LEGEND_ABOVE, "traceorder": "normal"},
            **wide,
        },
    )


def phase_traces(
    names: Sequence[str], walls_ms: Sequence[float], spent_ms: Mapping[str, Sequence[float]]
) -> list[dict[str, Any]]:
    """Return traces of stacked bars: the mean step of each name, split into phases that take time.

    `walls_ms` has one of each name, `spent_ms` by phase one of each name.
    """
    traces = []
    for phase in (phase for phase in PHASES if any(spent_ms[phase])):
        shares = [value / wall for value, wall in zip(spent_ms[phase], walls_ms, strict=True)]
        traces.append(
            {
                "type": "bar", "orientation": "h", "name": phase_name(phase),
                "x": np.round(spent_ms[phase], 3), "y": list(names),
                "marker": {"color": PHASE_COLOURS[phase], "line": {"width": 0}},
                "text": [f"{share:.0%}" if share >= 0.05 else "" for share in shares],
                "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
                "textfont": {"color": "#10151c"}, "constraintext": "none",
                "hovertemplate": "%{y}: %{x:,.3~g} ms a step",
            }
        )  # fmt: skip
    return traces


MAX_TIMELINE_COLUMNS = 2000
"""More steps than this are pooled."""
MAX_TIMELINE_RANKS = 8
"""Of more ranks, those with the longest data waits are shown."""
_POOLED: dict[str, Pooling] = {"data_wait": "max", "sync": "max", "other": "max"}
"""Phases in which a step can stall show the longest of a column; others show the mean."""
_MAX_SHADES = 60
_ROW_PX, _ONLY_ROW_PX = 150, 260
_TALL = 5.0
"""Height of the axis over an ordinary step, so that one long step does not flatten all others."""


def timeline(tables: Tables) -> Figure | None:
    """Return the phases of every step over time, one row a rank; None without steps."""
    steps = columns(tables, "steps")
    if steps.count == 0:
        return None
    clock, ranks = time_axis(tables), shown_ranks(steps)
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "height": 90 + (_ROW_PX * len(ranks) if len(ranks) > 1 else _ONLY_ROW_PX),
        "xaxis": {**clock.axis(), "anchor": "free", "position": 0.0},
        "hovermode": "x",
        "legend": {**_LEGEND_ABOVE, "x": 0, "traceorder": "normal"},
        "margin": TIME_MARGIN,
    }
    if shapes := _evaluations(steps.having(rank=ranks[0]), clock):
        layout["shapes"] = shapes
    top = axis_top_ms(steps)
    for row, rank in enumerate(ranks):
        of_rank = steps.having(rank=rank)
        of_rank = of_rank.where(np.argsort(of_rank["start_ns"], kind="stable"))
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
    """Return the ranks that a timeline shows, in order."""
    waits = {
        int(rank): float(steps["data_wait_ns"][steps["rank"] == rank].sum())
        for rank in np.unique(steps["rank"])
    }
    return sorted(sorted(waits, key=lambda rank: -waits[rank])[:MAX_TIMELINE_RANKS])


def axis_top_ms(steps: Columns) -> float:
    """Return the top of the axis: the longest step, or a multiple of an ordinary one."""
    wall_ms = steps["wall_ns"][steps["kind"] == "train"].astype(np.float64) / 1e6
    if len(wall_ms) == 0:
        wall_ms = steps["wall_ns"].astype(np.float64) / 1e6
    ordinary = float(np.percentile(wall_ms, 90))
    return 1.05 * max(min(float(wall_ms.max()), _TALL * ordinary), 1e-3)


def steps_above(steps: Columns) -> int:
    """Return how many steps are longer than the axis."""
    return int((steps["wall_ns"] / 1e6 > axis_top_ms(steps)).sum())


def steps_a_column(steps: Columns) -> int:
    """Return how many steps of a rank one column represents."""
    most = max(np.unique(steps["rank"], return_counts=True)[1], default=0)
    return int(-(-most // MAX_TIMELINE_COLUMNS))


def _traces(steps: Columns, clock: TimeAxis, axis: str, *, first: bool) -> list[dict[str, Any]]:
    groups = group_offsets(steps.count, MAX_TIMELINE_COLUMNS)
    last = np.append(groups[1:], steps.count) - 1
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
    """Return moments, and the column that holds from each on; the number of columns means none."""
    nothing = len(begins)
    gap = np.append(begins[1:] > ends[:-1] + 1e-9, True)
    x = np.column_stack((begins, ends)).ravel()
    value_at = np.column_stack((np.arange(nothing), np.full(nothing, nothing))).ravel()
    kept = np.column_stack((np.ones(nothing, dtype=np.bool_), gap)).ravel()
    return x[kept], value_at[kept]


def _evaluations(steps: Columns, clock: TimeAxis) -> list[dict[str, Any]]:
    """Return grey rectangles behind the times in which a rank evaluated."""
    evaluating = steps["kind"] == "eval"
    changes = np.flatnonzero(np.diff(np.append(np.append(0, evaluating.astype(np.int8)), 0)))
    begins, ends = changes[::2], changes[1::2] - 1
    if len(begins) > _MAX_SHADES:
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


_BINS_A_DECADE = 8
_SHORTEST_MS = 0.01


def read_waits_ms(tables: Tables) -> Floats | None:
    """Return the waits for batches of the loader that feeds training, ascending, if any."""
    fetches = columns(tables, "fetches")
    loader = main_loader(read_steps(tables))
    of_training = (fetches["ended"] == 0) & ((fetches["loader"] == loader) | (loader < 0))
    wait_ms = np.sort(fetches["wait_ns"][of_training].astype(np.float64) / 1e6)
    return wait_ms if len(wait_ms) else None


def data_waits(tables: Tables) -> Figure | None:
    """Return a histogram of waits for a batch by their length; None if none were recorded."""
    waits_ms = read_waits_ms(tables)
    if waits_ms is None:
        return None
    shown = np.maximum(waits_ms, _SHORTEST_MS)
    low, high = int(np.floor(np.log10(shown[0]))), int(np.ceil(np.log10(shown[-1]) + 1e-9))
    edges = np.logspace(low, high, max((high - low) * _BINS_A_DECADE, 1) + 1)
    counts, _ = np.histogram(shown, edges)
    waited, _ = np.histogram(shown, edges, weights=waits_ms)
    hover_texts = [
        f"{format_number(left)} to {format_number(right)} ms: {count:,} waits, "
        f"{format_number(part / 1e3)} s together"
        for (left, right), count, part in zip(pairwise(edges), counts, waited, strict=True)
    ]
    decades = range(high - low + 1)
    return figure(
        [
            _bars("of all waits", counts, PHASE_COLOURS["other"], hover_texts),
            _bars("of all time waited", waited, PHASE_COLOURS["data_wait"], hover_texts),
        ],
        {
            "height": 300,
            "xaxis": {
                "title": {"text": "how long a rank waited for a batch (ms, log scale)"},
                "range": [0, len(counts)],
                "tickvals": [decade * _BINS_A_DECADE for decade in decades],
                "ticktext": [_plain(10.0 ** (low + decade)) for decade in decades],
                "zeroline": False,
            },
            "yaxis": {"title": {"text": "share"}, "ticksuffix": "%", "rangemode": "tozero"},
            "legend": _LEGEND_ABOVE,
            "margin": {"l": 64, "r": 32, "t": 32, "b": 44},
            "bargap": 0.15,
            "bargroupgap": 0.0,
        },
    )


def _bars(name: str, amounts: NDArray[Any], colour: str, hover_texts: list[str]) -> dict[str, Any]:
    shares = 100.0 * amounts / max(float(amounts.sum()), 1e-12)
    return {
        "type": "bar", "name": name, "x": np.arange(len(amounts)) + 0.5, "y": shares.round(2),
        "customdata": hover_texts, "marker": {"color": colour, "line": {"width": 0}},
        "hovertemplate": f"%{{customdata}}<br>%{{y:.1f}}% {name}<extra></extra>",
    }  # fmt: skip


def _plain(value: float) -> str:
    return f"{value:,.2f}".rstrip("0").rstrip(".") if value < 10 else f"{value:,.0f}"
