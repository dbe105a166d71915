"""The flame views of workers and ranks."""

from __future__ import annotations

from headrace.report.charts import chart
from headrace.report.figures.flame import (
    LIBRARY_COLOUR,
    USER_COLOUR,
    Where,
    flame,
)
from headrace.report.markup import Html, element, joined
from headrace.report.material import Material
from headrace.report.section import Section, explained, note, section

_TITLES: dict[Where, str] = {
    "workers": "In the workers, while they made batches",
    "ranks": "In the ranks: the training loop itself",
}


def flame_section(material: Material) -> Section:
    """Return the section that shows which code ran."""
    title = "Which code ran"
    parts = [part for where in _TITLES if (part := _part(material, where)) is not None]
    if not parts:
        return section("flame", title, note("No code was sampled."))
    return section(
        "flame",
        title,
        explained(
            "Every process was looked at many times a second. The wider a box, the longer that "
            "function and what it calls was seen; each box is called by the one above it. ",
            _swatch(USER_COLOUR),
            " your code, with its busiest line; ",
            _swatch(LIBRARY_COLOUR),
            " libraries and Python itself. Click a box to look closer, and the top one to go back.",
        ),
        *parts,
    )


def _part(material: Material, where: Where) -> Html | None:
    figure = flame(material.tables, where)
    if figure is None:
        return None
    return joined(
        (
            element("h3", _TITLES[where]),
            chart(f"flame-{where}", figure, f"{_TITLES[where]}: functions by time"),
        )
    )  # fmt: skip


def _swatch(colour: str) -> Html:
    return element("span", class_="swatch", style=f"background:{colour}")
