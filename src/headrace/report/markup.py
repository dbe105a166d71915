"""HTML that is safe by construction: text is escaped unless it is HTML already."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TypeAlias


class Html(str):
    """Text that is HTML already; only this package makes it, never a record."""

    __slots__ = ()


Child: TypeAlias = "str | Html | None"
_EMPTY = frozenset({"br", "img", "meta"})


def escape(text: object) -> Html:
    """Return text as HTML that shows it, in an element or in an attribute."""
    return text if isinstance(text, Html) else Html(html.escape(str(text), quote=True))


def element(name: str, /, *children: Child, **attributes: str) -> Html:
    """Return an element.

    Args:
        name: Its name: p, td, ...
        children: What is in it, one after the other; plain text is escaped, None left out.
        attributes: Its attributes; `class_` stands for class, and _ for - as in data_name.
    """
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
    )
    if name in _EMPTY:
        return Html(f"<{name}{told}>")
    return Html(f"<{name}{told}>{joined(children)}</{name}>")


def joined(parts: Iterable[Child]) -> Html:
    """Return parts one after the other; plain text is escaped, None left out."""
    return Html("".join(escape(part) for part in parts if part is not None))


def table(head: Iterable[Child], rows: Iterable[Iterable[Child]], *, numbers: int = 0) -> Html:
    """Return a table that scrolls sideways where the page is too narrow for it.

    Args:
        head: The titles of the columns.
        rows: The cells, row by row.
        numbers: So many of the last columns are numbers, set flush right.
    """
    titles = list(head)

    def cells(kind: str, row: Iterable[Child]) -> Html:
        first = len(titles) - numbers
        return joined(
            element(kind, cell, **({"class_": "number"} if place >= first else {}))
            for place, cell in enumerate(row)
        )

    body = joined(element("tr", cells("td", row)) for row in rows)
    inside = joined((element("thead", element("tr", cells("th", titles))), element("tbody", body)))
    return element("div", element("table", inside), class_="wide")
