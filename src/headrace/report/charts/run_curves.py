"""Charts of several runs: the phases of their mean steps, and their metrics' curves overlaid."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


_NUMBER, _BETWEEN_WORDS = re.compile("[0-9]+"), re.compile("([^0-9A-Za-z#]+)")


def by_family(names: Iterable[str]) -> list[str]:
    """Return names of metrics, those first that share their family with the fewest others.

    Names are of one family that differ in numbers or in one word: class_00/iou and class_01/iou,
    or iou/cat and iou/dog. So what a script logs of the whole, such as lr and train/loss, is not
    lost among what it logs of each class.
    """
    families = {name: set(_families(name)) for name in names}
    sizes = Counter(family for found in families.values() for family in found)

    def place(name: str) -> tuple[int, int, str]:
        return max(sizes[family] for family in families[name]), len(families[name]), name

    return sorted(families, key=place)


def _families(name: str) -> Iterator[str]:
    """Yield a name without its numbers; of several words also without each one of these."""
    general = _NUMBER.sub("#", name)
    yield general
    words = _BETWEEN_WORDS.split(general)  # with what is between them
    for place in range(0, len(words), 2) if len(words) > 1 else ():
        yield "".join([*words[:place], "*", *words[place + 1 :]])
