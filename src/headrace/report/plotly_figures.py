"""Charts as Plotly figures, for notebooks: one function for each kind of chart."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

import numpy as np
import plotly.graph_objects as go

from headrace.observe.whatif.tables import Floats, Ints
from headrace.report.charts.base import Span
from headrace.report.charts.flame import (
    LIBRARY_COLOUR,
    ROOT_COLOUR,
    USER_COLOUR,
    FlameBox,
    FlameChart,
)
from headrace.report.charts.heatmap import UNKNOWN_PERCENT, HeatmapBand, HeatmapChart
from headrace.report.charts.phases import BarsChart
from headrace.report.charts.steps import StepRow, StepsChart
from headrace.report.charts.waits import ColumnsChart

_TIME_MARGIN = {"l": 132, "r": 24, "t": 40, "b": 44}
_LEGEND_ABOVE = {"orientation": "h", "y": 1.0, "yanchor": "bottom"}
_TEXT_ON_COLOUR = {"color": "#10151c"}


def empty_figure(text: str) -> go.Figure:
    """Return a figure that only says why there is nothing to show."""
    note = {"text": text, "showarrow": False, "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper"}
    hidden = {"visible": False}
    return _figure([], {"height": 120, "annotations": [note], "xaxis": hidden, "yaxis": hidden})


def _figure(traces: list[dict[str, Any]], layout: dict[str, Any]) -> go.Figure:
    shared = {
        "template": {"data": {"scatter": [{"type": "scatter"}]}},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "margin": {"l": 64, "r": 32, "t": 8, "b": 44},
        "hoverlabel": {"namelength": -1},
    }
    return go.Figure({"data": traces, "layout": {**shared, **layout}})


def _time_axis(shown: Span) -> dict[str, Any]:
    return {
        "title": {"text": "time since recording began (s)"}, "range": list(shown),
        "zeroline": False, "anchor": "free", "position": 0.0,
    }  # fmt: skip


_ROW_PX, _GAP_PX, _AROUND_PX = 18, 16, 110


def heatmap_figure(chart: HeatmapChart) -> go.Figure:
    """Return the heatmap, bands one below the other."""
    from_s, to_s = chart.span
    edges = np.linspace(from_s, to_s, chart.columns + 1)
    height_px = _heatmap_px(chart)
    gap = 0.0 if len(chart.bands) == 1 else _GAP_PX / height_px
    room = 1.0 - gap * (len(chart.bands) - 1)
    total = sum(len(band.rows) for band in chart.bands)
    traces = []
    layout: dict[str, Any] = {
        "height": height_px,
        "xaxis": {**_time_axis(chart.first_span), "showgrid": False},
        "margin": _TIME_MARGIN,
        "coloraxis": {
            "colorscale": "Viridis", "cmin": 0, "cmax": 100,
            "colorbar": {
                "orientation": "h", "thickness": 10, "len": 240, "lenmode": "pixels", "x": 0.0,
                "xanchor": "left", "y": 1.0, "yanchor": "bottom", "ypad": 4,
                "tickvals": [0, 25, 50, 75, 100],
                "ticktext": ["idle", "25%", "50%", "75%", "busy"],
                "ticklabelposition": "outside top",
            },
        },
    }  # fmt: skip
    top = 1.0
    for place, band in enumerate(chart.bands):
        height = room * len(band.rows) / total
        number = str(place + 1) if place else ""
        traces.append(_heatmap_trace(band, (edges[1:] + edges[:-1]) / 2, f"y{number}"))
        layout[f"yaxis{number}"] = {
            "domain": [max(top - height, 0.0), top], "autorange": "reversed", "showgrid": False,
            "ticks": "", "type": "category", "zeroline": False, "automargin": True,
        }  # fmt: skip
        top -= height + gap
    return _figure(traces, layout)


def _heatmap_px(chart: HeatmapChart) -> int:
    rows = sum(len(band.rows) for band in chart.bands)
    row_px = _ROW_PX if rows <= 40 else max(40 * _ROW_PX // rows, 4)
    return max(_AROUND_PX + rows * row_px + _GAP_PX * len(chart.bands), 220)


def _heatmap_trace(band: HeatmapBand, middle_s: Floats, axis: str) -> dict[str, Any]:
    percent = band.values.astype(np.float32)
    rows = [_text(f"{band.host} · {row}" if band.host else row) for row in band.rows]
    return {
        "type": "heatmap", "x": middle_s.round(4), "y": rows, "name": band.title,
        "z": np.where(band.values == UNKNOWN_PERCENT, np.nan, percent), "yaxis": axis,
        "coloraxis": "coloraxis", "hoverongaps": False, "ygap": 1 if len(band.rows) <= 60 else 0,
        "hovertemplate": "%{y}: %{z:.0f}% busy at %{x:.1f} s<extra></extra>",
    }  # fmt: skip


_STEPS_ROW_PX, _ONLY_ROW_PX = 150, 260


def steps_figure(chart: StepsChart) -> go.Figure:
    """Return the phases of steps over time, one row a rank."""
    traces: list[dict[str, Any]] = []
    rows = len(chart.rows)
    layout: dict[str, Any] = {
        "height": 90 + (_STEPS_ROW_PX * rows if rows > 1 else _ONLY_ROW_PX),
        "xaxis": _time_axis(chart.first_span),
        "hovermode": "x",
        "legend": {**_LEGEND_ABOVE, "x": 0, "traceorder": "normal"},
        "margin": _TIME_MARGIN,
        "shapes": [_shade(span) for span in chart.shades],
    }
    for place, row in enumerate(chart.rows):
        number = str(place + 1) if place else ""
        traces += _step_traces(chart, row, f"y{number}", first=place == 0)
        height = 1.0 / rows
        low = 1.0 - (place + 1) * height
        title = "ms a step" if rows == 1 else f"{row.name}<br>ms a step"
        layout[f"yaxis{number}"] = {
            "title": {"text": title, "font": {"size": 11}},
            "domain": [low + (0.12 * height if place < rows - 1 else 0.0), low + height],
            "range": [0.0, chart.top_ms],
            "nticks": 5,
        }
    return _figure(traces, layout)


def _step_traces(
    chart: StepsChart, row: StepRow, axis: str, *, first: bool
) -> Iterator[dict[str, Any]]:
    x, value_at = _outline(row.start_s, row.end_s)
    for phase, values_ms in zip(chart.phases, row.parts, strict=True):
        yield {
            "type": "scatter", "mode": "lines", "x": x, "y": np.append(values_ms, 0.0)[value_at],
            "name": phase.name, "stackgroup": axis, "yaxis": axis, "legendgroup": phase.name,
            "showlegend": first, "line": {"shape": "hv", "width": 0}, "fillcolor": phase.colour,
            "hovertemplate": "%{y:,.3~g} ms",
        }  # fmt: skip


def _outline(begins: Floats, ends: Floats) -> tuple[Floats, Ints]:
    """Return moments, and the column that holds from each on; the number of columns means none."""
    nothing = len(begins)
    gap = np.append(begins[1:] > ends[:-1] + 1e-9, True)
    x = np.column_stack((begins, ends)).ravel()
    value_at = np.column_stack((np.arange(nothing), np.full(nothing, nothing))).ravel()
    shown = np.column_stack((np.ones(nothing, dtype=np.bool_), gap[:nothing])).ravel()
    return x[shown], value_at[shown]


def _shade(span: Span) -> dict[str, Any]:
    return {
        "type": "rect", "xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "below",
        "x0": span[0], "x1": span[1], "line": {"width": 0}, "fillcolor": "rgba(128,128,128,0.18)",
    }  # fmt: skip


def bars_figure(chart: BarsChart) -> go.Figure:
    """Return stacked horizontal bars."""
    traces = [
        {
            "type": "bar", "orientation": "h", "name": part.name, "x": part.values,
            "y": list(chart.rows), "marker": {"color": part.colour, "line": {"width": 0}},
            "text": list(part.labels), "textposition": "inside", "insidetextanchor": "middle",
            "textangle": 0, "textfont": _TEXT_ON_COLOUR, "constraintext": "none",
            "hovertemplate": f"%{{y}}: %{{x:,.3~g}} {chart.unit} a step",
        }
        for part in chart.parts
    ]  # fmt: skip
    layout = {
        "height": 120 + 36 * len(chart.rows), "barmode": "stack", "bargap": 0.3,
        "xaxis": {"title": {"text": chart.x_title}, "zeroline": False},
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True},
        "legend": {**_LEGEND_ABOVE, "traceorder": "normal"},
    }  # fmt: skip
    return _figure(traces, layout)


def columns_figure(chart: ColumnsChart) -> go.Figure:
    """Return vertical bars side by side."""
    of_what = f"{chart.unit} %{{fullData.name}}<extra></extra>"
    traces = [
        {
            "type": "bar", "name": series.name, "x": np.arange(len(series.values)) + 0.5,
            "y": series.values, "customdata": list(series.texts),
            "marker": {"color": series.colour, "line": {"width": 0}},
            "hovertemplate": f"%{{customdata}}<br>%{{y:.1f}}{of_what}",
        }
        for series in chart.series
    ]  # fmt: skip
    layout = {
        "height": 300,
        "xaxis": {
            "title": {"text": chart.x_title},
            "range": [0, len(chart.series[0].values)],
            "tickvals": [tick.at for tick in chart.ticks],
            "ticktext": [tick.text for tick in chart.ticks],
            "zeroline": False,
        },
        "yaxis": {
            "title": {"text": chart.y_title}, "ticksuffix": chart.unit, "rangemode": "tozero",
        },
        "legend": _LEGEND_ABOVE,
        "margin": {"l": 64, "r": 32, "t": 32, "b": 44},
        "bargap": 0.15,
        "bargroupgap": 0.0,
    }  # fmt: skip
    return _figure(traces, layout)


_FLAME_ROW_PX = 24
_ROLE_COLOURS = {"root": ROOT_COLOUR, "user": USER_COLOUR, "library": LIBRARY_COLOUR}


def flame_figure(chart: FlameChart) -> go.Figure:
    """Return sampled code as an icicle chart, with widths by time."""
    boxes = list(_boxes(chart.root, "", "0"))
    ids, parents, shown = zip(*boxes, strict=True)
    trace = {
        "type": "icicle", "branchvalues": "total", "sort": False,
        "ids": ids, "parents": parents, "labels": [_text(box.name) for box in shown],
        "values": [box.value for box in shown], "hovertext": [_hover(box) for box in shown],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"colors": [_ROLE_COLOURS[box.role] for box in shown], "line": {"width": 1}},
        "leaf": {"opacity": 1.0}, "textfont": _TEXT_ON_COLOUR, "texttemplate": "%{label}",
        "tiling": {"orientation": "v", "pad": 1}, "pathbar": {"visible": False},
    }  # fmt: skip
    layout = {
        "height": 8 + _FLAME_ROW_PX * max(box_id.count(".") + 1 for box_id in ids),
        "margin": {"l": 0, "r": 0, "t": 4, "b": 4},
        "uniformtext": {"minsize": 10, "mode": "hide"},
    }
    return _figure([trace], layout)


def _boxes(box: FlameBox, parent: str, own_id: str) -> Iterator[tuple[str, str, FlameBox]]:
    yield own_id, parent, box
    for place, below in enumerate(box.below):
        yield from _boxes(below, own_id, f"{own_id}.{place}")


def _hover(box: FlameBox) -> str:
    lines = [f"<b>{_text(box.name)}</b>", *([_text(box.place)] if box.place else []), box.text]
    return "<br>".join(lines)


def _text(text: str) -> str:
    """Return text for a label, which Plotly reads as a kind of HTML."""
    return html.escape(text, quote=False)
