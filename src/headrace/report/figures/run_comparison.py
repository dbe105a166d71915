"""Charts of several runs: the phases of their mean steps, and their metrics' curves overlaid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headrace.decide.experiments.compared_runs import ComparedRun
from headrace.decide.experiments.metric_curves import Curve
from headrace.records.schema import PHASES
from headrace.report.figures.base import Figure, figure
from headrace.report.figures.step_phases import phase_traces

_RUN_COLOURS = (
    "#3b7dd8", "#e8590c", "#2a9d8f", "#9c5fd6", "#e0a800", "#d6336c", "#7a8794", "#5c940d",
)  # fmt: skip
_DASHES = ("solid", "dash", "dot", "dashdot")
"""Of the second eight runs, the third and so on."""
_CURVES_PX = 260
_MOST_IN_LEGEND = 8
"""Of more runs the names show where the pointer is."""


def phases_by_run(runs: Sequence[ComparedRun]) -> Figure:
    """Return the mean step of each run, split into phases."""
    walls_ms = [max(run.step_ms, 1e-9) for run in runs]
    spent_ms = {phase: [run.phases_ms.get(phase, 0.0) for run in runs] for phase in PHASES}
    traces = phase_traces([run.name for run in runs], walls_ms, spent_ms)
    return figure(
        traces,
        {
            "height": 120 + 30 * len(runs),
            "barmode": "stack",
            "bargap": 0.3,
            "xaxis": {"title": {"text": "mean time of a step (ms)"}, "zeroline": False},
            "yaxis": {"autorange": "reversed", "type": "category", "automargin": True},
            "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "traceorder": "normal"},
        },
    )


def overlaid_curves(curves: Mapping[str, Curve], order: Sequence[str]) -> Figure:
    """Return a metric's curves, one a run by its name; runs keep the colours of their order."""
    traces = [
        {
            "type": "scatter", "mode": "lines", "name": name,
            "x": np.array(curves[name].steps, np.float64), "y": np.array(curves[name].values),
            "line": {
                "color": _RUN_COLOURS[place % len(_RUN_COLOURS)], "width": 1.6,
                "dash": _DASHES[place // len(_RUN_COLOURS) % len(_DASHES)],
            },
            "hovertemplate": "step %{x}: %{y:.4~g}",
        }
        for place, name in enumerate(order)
        if name in curves
    ]  # fmt: skip
    return figure(
        traces,
        {
            "height": _CURVES_PX,
            "xaxis": {"title": {"text": "step"}, "zeroline": False},
            "yaxis": {"zeroline": False, "automargin": True},
            "showlegend": 1 < len(traces) <= _MOST_IN_LEGEND,
            "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom"},
        },
    )
