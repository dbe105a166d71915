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
from urllib.parse import quote

from headrace.core.errors import UsageError
from headrace.core.files import write_atomically
from headrace.report.markup import Html, Section, element, join_html


def html_document(
    name: str, kind: str, sections: Sequence[Section], *, subtitle: str = ""
) -> list[bytes]:
    """Return a document as HTML in pieces.

    Its heading is the name, and the browser's title has what kind of document it is, too.
    """
    script = static_file("page.js").encode()
    head = join_html(
        element("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{name} · Headrace {kind}"),
        element("style", Html(static_file("page.css"))),
    )
    body = join_html(
        _header(name, subtitle, sections),
        element("main", *map(_shown, sections)),
        element("footer", "Made by Headrace. The page loads nothing from anywhere."),
    )
    begin = f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{body}'
    shown_bytes = begin.encode(errors="backslashreplace")  # names of files may be no text
    return [shown_bytes, b"<script>", script, b"</script></body></html>\n"]


def live_document(
    name: str, kind: str, *, live: str = "", sections: Sequence[Section] = ()
) -> list[bytes]:
    """Return a document that its server keeps up to date.

    Args:
        name: Its heading.
        kind: runs, run or compare.
        live: The path below which the server has a run; empty for other documents.
        sections: What stands in it from the start.
    """
    head = join_html(
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="headrace-live", content=quote(live, errors="replace"))
        if live
        else None,
        element("title", f"{name} · Headrace"),
        Html('<link rel="icon" href="data:,">'),
        Html('<link rel="stylesheet" href="/static/page.css">'),
        Html('<script src="/static/page.js" defer></script>'),
    )
    all_runs = element("p", element("a", "All runs", href="/"), class_="small")
    body = join_html(
        element(
            "header",
            all_runs if kind != "runs" else None,
            element("h1", name),
            element("p", "", class_="small", id="subtitle"),
            element("p", "", class_="small", id="attempt-choice", hidden="") if live else None,
            element("p", "", class_="small", id="cost-so-far", hidden="") if live else None,
            element("div", id="controls") if live else None,
            element("nav", *_links(sections), aria_label="Sections"),
            element("noscript", element("p", "This page needs JavaScript.", class_="note")),
            class_="top",
        ),
        element("div", id="banner", role="status"),
        element(
            "main",
            element("div", id="run-list") if kind == "runs" else None,
            *map(_shown, sections),
            _output() if live else None,
        ),
    )
    page = f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body class="{kind}">{body}'
    return [f"{page}</body></html>\n".encode(errors="backslashreplace")]


def sections_json(sections: Sequence[Section]) -> list[dict[str, str]]:
    """Return sections as a live page's script takes them, with a stamp that changes as they do."""
    return [
        {
            "id": each.id,
            "title": each.title,
            "html": each.body,
            "stamp": hashlib.sha256(each.body.encode(errors="replace")).hexdigest()[:16],
        }
        for each in sections
    ]


def _output() -> Html:
    """Return the section of the ranks' output, which the page's script fills."""
    return element("section", element("h2", "Output"), element("div", id="logs"))


def _shown(section: Section) -> Html:
    return element("section", element("h2", section.title), section.body, id=section.id)


def _links(sections: Sequence[Section]) -> list[Html]:
    return [element("a", each.title, href=f"#{each.id}") for each in sections]


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
    return element(
        "header",
        element("h1", name),
        element("p", subtitle, class_="small"),
        element("nav", *_links(sections), aria_label="Sections"),
        element(
            "noscript",
            element("p", "The charts need JavaScript; everything else is readable without.",
                    class_="note"),
        ),
        class_="top",
    )  # fmt: skip


def _policy(script: bytes) -> str:
    """Return the content policy: only this script, and styles in the page."""
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def static_file(name: str) -> str:
    """Return what `web/` was built into: page.js or page.css."""
    return files("headrace.report").joinpath("static", name).read_text(encoding="utf-8")
