"""Runs side by side on the live page: what differs, and their charts on one axis of time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from headrace.core.errors import HeadraceError
from headrace.decide.experiments.compared_runs import compared_runs
from headrace.report.comparison_page import comparison_sections, read_comparison_data
from headrace.report.markup import Section, chart_place, element, explanation, note, section

_CHARTS = {
    "timeline": ("Steps over time", "Phases of every step over time"),
    "heatmap": ("How busy everything was", "How busy ranks, workers and cores were over time"),
}


def live_comparison(runs: Mapping[str, Path]) -> list[Section]:
    """Return the sections of a page about runs by name, two or more."""
    return [*_differences(runs), *(_charts(name, runs) for name in _CHARTS)]


def _differences(runs: Mapping[str, Path]) -> list[Section]:
    """Return what differs by numbers; a sentence where runs cannot be compared so far."""
    try:
        data = read_comparison_data(compared_runs(list(runs.values())), " and ".join(runs))
        return comparison_sections(data, heatmaps=False)
    except HeadraceError as error:
        return [section("runs", "Runs", note(str(error)))]


def _charts(chart: str, runs: Mapping[str, Path]) -> Section:
    title, description = _CHARTS[chart]
    places = (
        part
        for name in runs
        for part in (
            element("h3", element("a", name, href=f"/runs/{quote(name)}")),
            chart_place(f"{name}/{chart}", f"{description}: {name}"),
        )
    )
    return section(
        f"{chart}s",
        title,
        explanation("Time runs from the start of each run's own recording."),
        *places,
    )
