"""The section of what the script logged: the curves of the run's metrics, as far as sent."""

from __future__ import annotations

import hashlib
from pathlib import Path

from headrace.core.errors import RecordsError
from headrace.decide.experiments.metric_curves import STEP_TIME_PREFIX, read_run_curves
from headrace.report.charts.lines import LinesChart
from headrace.report.charts.run_curves import overlaid_curves
from headrace.report.markup import Section, element, explanation, note, section
from headrace.report.page_data import PageData

PREFIX = "metric-"
"""The beginning of the names of these charts."""
_MOST_CURVES = 24


def metric_charts(run: Path) -> dict[str, tuple[str, LinesChart]]:
    """Return the name of each metric that the script logged several times, and its chart, by id.

    Of a run that is tracked on a server there are none: a page does not ask one. RecordsError: the
    database cannot be read now.
    """
    found = read_run_curves(run, only_local=True).curves
    curves = {name: each for name, each in found.items() if not name.startswith(STEP_TIME_PREFIX)}
    return {
        PREFIX + hashlib.sha256(name.encode(errors="replace")).hexdigest()[:12]: (
            name,
            overlaid_curves({run.name: curve}, [run.name]),
        )
        for name, curve in sorted(curves.items())[:_MOST_CURVES]
    }


def metrics_section(data: PageData) -> Section | None:
    """Return the section; None where the script logged no time series."""
    title = "Metrics of the script"
    try:
        charts = metric_charts(data.path)
    except RecordsError as error:
        return section("metrics", title, note(str(error)))
    if not charts:
        return None
    places = (
        element("div", element("h3", name), data.chart_place(place, f"{name} by step", chart))
        for place, (name, chart) in charts.items()
    )
    return section(
        "metrics",
        title,
        explanation("What the script logged, by its own steps: all attempts of the run together."),
        element("div", *places, class_="curves"),
    )
