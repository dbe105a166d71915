"""The phases of the mean step of each rank, by the host's clock and by the accelerator's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.observe.whatif.device import DeviceSteps
from headrace.observe.whatif.steps import TrainSteps, read_steps
from headrace.observe.whatif.tables import Tables
from headrace.records.schema import PHASES
from headrace.report.figures.drawing import PHASE_COLOURS, figure
from headrace.report.telling import phase_name

_MOST_RANKS = 64


@dataclass(frozen=True, slots=True)
class _Bar:
    """The mean step of one rank by one clock, and its phases in the order of `PHASES`."""

    name: str
    wall_ms: float
    phases_ms: tuple[float, ...]


def phases(tables: Tables) -> Any | None:
    """Return the mean training step of each rank, cut into phases; None without such steps.

    The steps in which the script warms up do not count. Where phases by the accelerator's own clock
    were recorded, a rank has a second bar with these.

    Args:
        tables: The run's records.
    """
    steps = read_steps(tables)
    if not steps.ranks:
        return None
    bars = _bars(steps)
    traces = []
    for place, phase in enumerate(PHASES):
        values_ms = [bar.phases_ms[place] for bar in bars]
        if not any(values_ms):
            continue
        shares = [
            value / max(bar.wall_ms, 1e-9) for value, bar in zip(values_ms, bars, strict=True)
        ]
        traces.append(
            {
                "type": "bar", "orientation": "h", "name": phase_name(phase),
                "x": np.round(values_ms, 3), "y": [bar.name for bar in bars],
                "marker": {"color": PHASE_COLOURS[phase], "line": {"width": 0}},
                "text": [f"{share:.0%}" if share >= 0.05 else "" for share in shares],
                "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
                "textfont": {"color": "#10151c"}, "constraintext": "none",
                "hovertemplate": "%{y}: %{x:,.3~g} ms a step",
            }
        )  # fmt: skip
    wide = {} if steps.device is None else {"margin": {"l": 132, "r": 32, "t": 8, "b": 44}}
    return figure(
        traces,
        {
            "height": 120 + 36 * len(bars),
            "barmode": "stack",
            "bargap": 0.3,
            "xaxis": {"title": {"text": "mean time of a step (ms)"}, "zeroline": False},
            "yaxis": {"autorange": "reversed", "type": "category"},
            "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "traceorder": "normal"},
            **wide,
        },
    )


def _bars(steps: TrainSteps) -> list[_Bar]:
    bars = []
    for rank in steps.ranks[:_MOST_RANKS]:
        own = steps.of(steps.rows["rank"] == rank)
        bars.append(_bar(f"rank {rank}", own))
        if own.device is not None:
            bars.append(_bar(f"rank {rank}, accelerator", own.device))
    return bars


def _bar(name: str, steps: TrainSteps | DeviceSteps) -> _Bar:
    return _Bar(
        name=name,
        wall_ms=float(steps.wall_ns.mean() / 1e6),
        phases_ms=tuple(float(steps.phase_ns(phase).mean() / 1e6) for phase in PHASES),
    )
