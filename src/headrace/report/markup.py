"""Escaped HTML, and the page's sections and charts made of it.

Text is escaped unless it is HTML already, so that records cannot inject any.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from headrace.report.charts.base import Chart, chart_json


class Html(str):
    """Text that is HTML already; only this package makes it, never a record."""

    __slots__ = ()


Child: TypeAlias = "str | Html | None"
_VOID_ELEMENTS = frozenset({"br", "img", "meta"})


def escape(text: object) -> Html:
    """Return text as HTML that shows it, in an element or in an attribute."""
    return text if isinstance(text, Html) else Html(html.escape(str(text), quote=True))


def element(name: str, /, *children: Child, **attributes: str) -> Html:
    """Return an element; plain text is escaped, None left out.

    In names of attributes `class_` stands for class, and _ for - as in data_name.
    """
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
    )
    if name in _VOID_ELEMENTS:
        return Html(f"<{name}{attribute_text}>")
    return Html(f"<{name}{attribute_text}>{join_html(*children)}</{name}>")


def join_html(*parts: Child) -> Html:
    """Return parts in order; plain text is escaped, None left out."""
    return Html("".join(escape(part) for part in parts if part is not None))


def table(head: Iterable[Child], rows: Iterable[Iterable[Child]], *, numbers: int = 0) -> Html:
    """Return a table that scrolls sideways on a narrow page; its last columns are numbers."""
    titles = list(head)

    def cells(kind: str, row: Iterable[Child]) -> Html:
        first = len(titles) - numbers
        return join_html(
            *(
                element(kind, cell, **({"class_": "number"} if place >= first else {}))
                for place, cell in enumerate(row)
            )
        )

    body = join_html(*(element("tr", cells("td", row)) for row in rows))
    inside = join_html(element("thead", element("tr", cells("th", titles))), element("tbody", body))
    return element("div", element("table", inside), class_="wide")


def definitions(texts: Mapping[str, str], *, class_: str) -> Html:
    """Return a list of terms with their texts."""
    parts = (element("dt", term) + element("dd", text) for term, text in texts.items())
    return element("dl", Html("".join(parts)), class_=class_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of the page."""

    id: str  # unique on the page; the link to it
    title: str
    body: Html


def section(name: str, title: str, *parts: Child) -> Section:
    """Return a section; plain text is escaped, None left out."""
    return Section(id=name, title=title, body=join_html(*parts))


def explanation(*parts: Child) -> Html:
    """Return a paragraph that says how to read what follows."""
    return element("p", *parts, class_="explained")


def note(*parts: Child) -> Html:
    """Return a paragraph that says why something is missing or unreliable."""
    return element("p", *parts, class_="note")


def left_out_note(count: int, noun: str = "", where: str = "left out") -> Html | None:
    """Return a note on how many more there are than a table or a chart has; None without any."""
    if count <= 0:
        return None
    what = f"{noun}{'' if count == 1 else 's'} " if noun else ""
    return note(f"{count:,} more {what}{'is' if count == 1 else 'are'} {where}.")


def chart_place(name: str, description: str, model: Chart | None = None) -> Html:
    """Return the element in which the page's script draws a chart, and the chart as data.

    The description is for screen readers. Without data the script asks the page's server for it.
    """
    place = {"class_": "chart", "id": f"chart-{name}", "role": "img", "aria_label": description}
    if model is None:
        return element("div", **place)
    # "<" in a script element could end it, so JSON's escape for it is used.
    data = Html(chart_json(model).replace("<", "\\u003c"))
    return join_html(
        element("div", **place, data_chart=model.kind, data_model=f"model-{name}"),
        element("script", data, type="application/json", id=f"model-{name}"),
    )
