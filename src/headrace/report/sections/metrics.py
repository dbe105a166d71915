"""The section of what the script logged: the curves of the run's metrics, as far as sent."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from headrace.core.errors import RecordsError
from headrace.decide.experiments.metric_curves import (
    STEP_TIME_PREFIX,
    Curve,
    read_points_between,
    read_run_curves,
)
from headrace.observe.whatif.tables import columns
from headrace.records.reader import Records
from headrace.report.charts.base import ChartSpan
from headrace.report.charts.heatmap import began_unix_s
from headrace.report.charts.lines import LinesChart
from headrace.report.charts.run_curves import by_family, overlaid_curves
from headrace.report.markup import Section, element, explanation, left_out_note, note, section
from headrace.report.page_data import PageData

PREFIX = "metric-"
"""The beginning of the names of these charts."""
_MOST_CURVES = 24


def read_metrics(run: Path) -> dict[str, Curve]:
    """Return the metrics that the script logged several times, by their names.

    Of a run that is tracked on a server there are none: a page does not ask one. RecordsError: the
    database cannot be read now.
    """
    found = read_run_curves(run, only_local=True).curves
    return {name: each for name, each in found.items() if not name.startswith(STEP_TIME_PREFIX)}


def metric_charts(run: Path, curves: Mapping[str, Curve]) -> dict[str, tuple[str, LinesChart]]:
    """Return the name of each metric that a page shows, and its chart, by id."""
    return {
        PREFIX + hashlib.sha256(name.encode(errors="replace")).hexdigest()[:12]: (
            name,
            overlaid_curves({run.name: curves[name]}, [run.name]),
        )
        for name in by_family(curves)[:_MOST_CURVES]
    }


_ROUNDING_NS = 1000  # of an axis's limits
_LATE_MS = 2000  # after the last record a script may log something; the next attempt, none so soon


def metric_chart(records: Records, place: str, span: ChartSpan) -> LinesChart | None:
    """Return a metric's chart by its id, of a part of the time with the points logged in it.

    It has all points where the time of day of the records is unknown. None: there is no such
    metric. RecordsError: the database cannot be read now.
    """
    run = records.path
    name, whole = metric_charts(run, read_metrics(run)).get(place, ("", None))
    axis, began_s = span.axis, began_unix_s(records, span.axis)
    is_last = span.to_ns >= axis.ended_ns - _ROUNDING_NS
    if whole is None or began_s is None or (is_last and span.from_ns <= axis.began_ns):
        return whole
    begin_ms, end_ms = (round((began_s + moment_s) * 1000) for moment_s in span.seconds)
    points = read_points_between(run, name, begin_ms, end_ms + is_last * _LATE_MS)
    return overlaid_curves({run.name: points}, [run.name])


def _which(data: PageData) -> str:
    """Return which points the charts have: those of a span only a server draws."""
    offsets_ns = columns(data.tables, "hosts")["unix_offset_ns"]
    if data.charts_inside or not data.of_a_span or not offsets_ns[:1].any():
        return "What the script logged, by its own steps: all attempts of the run together."
    return "What the script logged in this span of time, by its own steps."


def metrics_section(data: PageData) -> Section | None:
    """Return the section; None where the script logged no time series."""
    title = "Metrics of the script"
    try:
        curves = read_metrics(data.path)
    except RecordsError as error:
        return section("metrics", title, note(str(error)))
    if not curves:
        return None
    places = (
        element("div", element("h3", name), data.chart_place(place, f"{name} by step", chart))
        for place, (name, chart) in metric_charts(data.path, curves).items()
    )
    return section(
        "metrics",
        title,
        explanation(_which(data)),
        element("div", *places, class_="curves"),
        left_out_note(len(curves) - _MOST_CURVES, "metric", "in MLflow"),
    )
