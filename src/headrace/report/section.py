"""A section of the page: a part that can be made anew by itself."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.report.markup import Child, Html, element, joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section.

    Attributes:
        id: Unique on the page; the link to it.
        title: Its heading.
        body: What is in it.
    """

    id: str
    title: str
    body: Html

    @property
    def html(self) -> Html:
        """The section as it stands on the page."""
        return element("section", element("h2", self.title), self.body, id=self.id)


def section(name: str, title: str, *parts: Child) -> Section:
    """Return a section.

    Args:
        name: Its id.
        title: Its heading.
        parts: What is in it, one after the other; plain text is escaped, None left out.
    """
    return Section(id=name, title=title, body=joined(parts))


def explained(*parts: Child) -> Html:
    """Return the paragraph that says how to read what follows."""
    return element("p", *parts, class_="explained")


def note(*parts: Child) -> Html:
    """Return a paragraph that says why something is missing or not to be relied on."""
    return element("p", *parts, class_="note")
