"""The phases of the mean step of each rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.observe.whatif.steps import read_steps
from headrace.observe.whatif.tables import Tables
from headrace.records.schema import PHASES
from headrace.report.figures.drawing import PHASE_COLOURS, figure
from headrace.report.telling import phase_name

_MOST_RANKS = 64


def phases(tables: Tables) -> Any | None:
    """Return the mean training step of each rank, cut into phases; None without such steps.

    The steps in which the script warms up do not count.

    Args:
        tables: The run's records.
    """
    steps = read_steps(tables)
    ranks = steps.ranks[:_MOST_RANKS]
    if not ranks:
        return None
    traces = []
    wall_ms = [steps.wall_ns[steps.rows["rank"] == rank].mean() / 1e6 for rank in ranks]
    for phase in PHASES:
        values_ms = [
            float(steps.phase_ns(phase)[steps.rows["rank"] == rank].mean() / 1e6) for rank in ranks
        ]
        if not any(values_ms):
            continue
        shares = [value / max(wall, 1e-9) for value, wall in zip(values_ms, wall_ms, strict=True)]
        traces.append(
            {
                "type": "bar", "orientation": "h", "name": phase_name(phase),
                "x": np.round(values_ms, 3), "y": [f"rank {rank}" for rank in ranks],
                "marker": {"color": PHASE_COLOURS[phase], "line": {"width": 0}},
                "text": [f"{share:.0%}" if share >= 0.05 else "" for share in shares],
                "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
                "textfont": {"color": "#10151c"}, "constraintext": "none",
                "hovertemplate": "%{y}: %{x:,.3~g} ms a step",
            }
        )  # fmt: skip
    return figure(
        traces,
        {
            "height": 120 + 36 * len(ranks),
            "barmode": "stack",
            "bargap": 0.3,
            "xaxis": {"title": {"text": "mean time of a step (ms)"}, "zeroline": False},
            "yaxis": {"autorange": "reversed", "type": "category"},
            "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "traceorder": "normal"},
        },
    )
