"""A self-contained HTML document made of sections, and its file.

It loads nothing: all that it needs is included, and its content policy forbids the browser to fetch
or run anything else, whatever the records contain.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from headrace.core.errors import UsageError
from headrace.core.files import write_atomically
from headrace.report.markup import Html, Section, element, join_html


def html_document(
    name: str, kind: str, sections: Sequence[Section], *, subtitle: str = ""
) -> list[bytes]:
    """Return a document as HTML in pieces: Plotly is five megabytes of it.

    Its heading is the name, and the browser's title has what kind of document it is, too.
    """
    scripts = (_plotly(), _asset("page.js").encode())
    head = join_html(
        element("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{name} · Headrace {kind}"),
        element("style", Html(_asset("page.css"))),
    )
    shown = (
        element("section", element("h2", each.title), each.body, id=each.id) for each in sections
    )
    body = join_html(
        _header(name, subtitle, sections),
        element("main", *shown),
        element("footer", "Made by Headrace. The page loads nothing from anywhere."),
    )
    begin = f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{body}'
    framed = (part for script in scripts for part in (b"<script>", script, b"</script>"))
    shown_bytes = begin.encode(errors="backslashreplace")  # names of files may be no text
    return [shown_bytes, *framed, b"</body></html>\n"]


def write_document(document: Sequence[bytes], output: str | Path, name: str, *, flag: str) -> Path:
    """Write a document into a file, or into a folder under a name, and return its path.

    Raises:
        UsageError: The file cannot be written; the message names the flag that gives another.
    """
    path = Path(output).expanduser()
    if path.is_dir():
        path /= name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, document, durable=False)  # a browser may be reading it
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error}. Give another file with {flag}."
        ) from error
    return path.resolve()


def _header(name: str, subtitle: str, sections: Sequence[Section]) -> Html:
    links = (element("a", each.title, href=f"#{each.id}") for each in sections)
    return element(
        "header",
        element("h1", name),
        element("p", subtitle, class_="small"),
        element("nav", *links, aria_label="Sections"),
        element(
            "noscript",
            element("p", "The charts need JavaScript; everything else is readable without.",
                    class_="note"),
        ),
        class_="top",
    )  # fmt: skip


def _policy(scripts: tuple[bytes, ...]) -> str:
    """Return the content policy: only these scripts, and styles in the page."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"
        for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    return files("headrace.report").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> bytes:
    source = files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
    # As browsers normalise it, or else its hash would differ.
    return source.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in source else source
