"""Charts of several runs: the phases of their mean steps, and their metrics' curves overlaid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.records.schema import PHASES
from headrace.report.charts.lines import Line, LinesChart
from headrace.report.charts.phases import BarsChart, phase_bars

if TYPE_CHECKING:  # a run's end imports this for the curves of one run
    from headrace.decide.experiments.compared_runs import ComparedRun
    from headrace.decide.experiments.metric_curves import Curve

_RUN_COLOURS = (
    "#3b7dd8", "#e8590c", "#2a9d8f", "#9c5fd6", "#e0a800", "#d6336c", "#7a8794", "#5c940d",
)  # fmt: skip
_DASHES: tuple[tuple[int, ...], ...] = ((), (8, 4), (2, 4), (8, 4, 2, 4))
"""Lengths of dashes and gaps: of the second eight runs, the third and so on."""


def phases_by_run(runs: Sequence[ComparedRun]) -> BarsChart:
    """Return the mean step of each run, split into phases."""
    return phase_bars(
        [run.name for run in runs],
        [run.step_ms for run in runs],
        {phase: [run.phases_ms.get(phase, 0.0) for run in runs] for phase in PHASES},
    )


def overlaid_curves(curves: Mapping[str, Curve], order: Sequence[str]) -> LinesChart:
    """Return a metric's curves, one a run by its name; runs keep the colours of their order."""
    return LinesChart(
        x_title="step",
        y_title="",
        unit="",
        time=False,
        series=tuple(
            Line(
                name=name,
                colour=_RUN_COLOURS[place % len(_RUN_COLOURS)],
                dash=_DASHES[place // len(_RUN_COLOURS) % len(_DASHES)],
                x=np.array(curves[name].steps, np.float64),
                y=np.array(curves[name].values, np.float64),
            )
            for place, name in enumerate(order)
            if name in curves
        ),
    )
