"""A chart's place on the page, with the data that page.js draws there."""

from __future__ import annotations

from typing import Any

from headrace.report.markup import Html, element, joined


def chart(name: str, figure: Any, told: str) -> Html:
    """Return the place of a chart and its data.

    Args:
        name: Unique on the page.
        figure: The Plotly figure; its place on the page is as high as its layout says.
        told: What it shows, for who cannot see it.
    """
    place = element(
        "div",
        class_="chart",
        id=f"chart-{name}",
        role="img",
        aria_label=told,
        style=f"height:{figure.layout.height}px",
        data_figure=f"data-{name}",
    )
    # "<" in a script element could end it: in JSON it may be written as its number instead.
    data = Html(figure.to_json().replace("<", "\\u003c"))
    return joined((place, element("script", data, type="application/json", id=f"data-{name}")))
