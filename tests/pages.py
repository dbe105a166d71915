"""A page as a browser would take it apart."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import numpy as np

LOADING = {"src", "srcset", "data", "poster", "background", "action", "formaction", "ping"}


@dataclass
class Page(HTMLParser):
    """Elements with their attributes, the text, scripts, and the data of charts."""

    html: str
    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    text: str = ""
    scripts: list[str] = field(default_factory=list)
    styles: str = ""
    charts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.inside: tuple[str, dict[str, str]] = ("", {})
        self.feed(self.html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attributes))
        self.inside = (tag, attributes)

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 - the parser's own signature
        self.inside = ("", {})

    def handle_data(self, data: str) -> None:
        tag, attributes = self.inside
        if tag == "script" and attributes.get("type") == "application/json":
            model = json.loads(data, object_hook=with_numbers)
            self.charts[attributes["id"].removeprefix("model-")] = model
        elif tag == "script":
            self.scripts.append(data)
        elif tag == "style":
            self.styles += data
        else:
            self.text += data

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}


def check_alone(page: Page) -> None:
    """Nothing is loaded, and nothing runs but the page's own script."""
    for tag, attributes in page.elements:
        assert not LOADING & attributes.keys(), (tag, attributes)
        assert attributes.get("href", "#").startswith("#"), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        assert "url(" not in attributes.get("style", "")
    assert not page.tags & {"link", "iframe", "img", "object", "embed", "base", "form", "video"}
    assert not re.search(r"url\(|@import", page.styles)
    policy = next(a["content"] for t, a in page.elements if t == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in policy
    (script,) = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy


def with_numbers(value: dict[str, Any]) -> Any:
    """Return an array of numbers of a chart as a list; other values as they are."""
    if value.keys() - {"shape"} != {"dtype", "data"}:
        return value
    numbers = np.frombuffer(base64.b64decode(value["data"]), value["dtype"])
    return numbers.reshape(value.get("shape", -1)).tolist()
