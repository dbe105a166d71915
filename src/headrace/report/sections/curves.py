"""The section of lines over time: speed, waits, batches that lay ready, memory, traffic."""

from __future__ import annotations

from collections.abc import Callable

from headrace.observe.whatif.tables import Tables
from headrace.report.charts.base import ChartSpan
from headrace.report.charts.lines import (
    LinesChart,
    data_wait_chart,
    memory_chart,
    ready_chart,
    samples_chart,
    traffic_chart,
)
from headrace.report.markup import Section, element, explanation, section
from headrace.report.page_data import PageData

CURVES: dict[str, tuple[str, Callable[[Tables, ChartSpan | None], LinesChart | None]]] = {
    "samples": ("Samples a second, all ranks together", samples_chart),
    "data-wait": ("Step time in which the script waits for data", data_wait_chart),
    "ready": ("Batches that lay ready when a rank asked for one", ready_chart),
    "memory": ("Memory in use", memory_chart),
    "traffic": ("Traffic of disks and network", traffic_chart),
}
"""The charts by name: what each shows, and how it is made."""


def curves_section(data: PageData) -> Section | None:
    """Return the section; None if nothing of it was recorded."""
    parts = []
    for name, (title, draw) in CURVES.items():
        drawn = draw(data.tables, None)
        if drawn is not None:
            place = data.chart_place(name, title, drawn)
            parts.append(element("div", element("h3", title), place))
    if not parts:
        return None
    return section(
        "curves",
        "Speed and resources over time",
        explanation(
            "Speed and waits are means of a moment; of batches that lay ready the fewest are "
            "drawn, too; of memory, disks and network the most in a moment."
        ),
        element("div", *parts, class_="curves"),
    )
