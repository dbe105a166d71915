"""The page: one self-contained HTML document made of sections, and its file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from headrace.core.errors import UsageError
from headrace.core.files import write_atomically
from headrace.records.reader import open_records
from headrace.report.formatting import format_time
from headrace.report.markup import Html, Section, element, join_html
from headrace.report.page_data import PageData, read_page_data
from headrace.report.sections import cost, diagnosis, tables

SECTIONS: tuple[Callable[[PageData], Section | None], ...] = (
    diagnosis.verdict_section,
    diagnosis.findings_section,
    cost.cost_section,
    diagnosis.timeline_section,
    diagnosis.heatmap_section,
    diagnosis.waits_section,
    tables.transforms_section,
    tables.workers_section,
    tables.auxiliary_section,
    diagnosis.flame_section,
    tables.facts_section,
    tables.glossary_section,
)
"""The page's sections, in reading order."""


def page_of(data: PageData) -> list[bytes]:
    """Return the page about a run, as HTML in pieces: Plotly is five megabytes of it.

    It loads nothing: all that it needs is included, and its content policy forbids the browser to
    fetch or run anything else, whatever the records contain.
    """
    sections = [built for build in SECTIONS if (built := build(data)) is not None]
    scripts = (_plotly(), _asset("page.js").encode())
    head = join_html(
        element("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{data.name} · Headrace report"),
        element("style", Html(_asset("page.css"))),
    )
    shown = (
        element("section", element("h2", each.title), each.body, id=each.id) for each in sections
    )
    body = join_html(
        _header(data, sections),
        element("main", *shown),
        element("footer", "Made by Headrace. The page loads nothing from anywhere."),
    )
    begin = f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{body}'
    framed = (part for script in scripts for part in (b"<script>", script, b"</script>"))
    shown_bytes = begin.encode(errors="backslashreplace")  # names of files may be no text
    return [shown_bytes, *framed, b"</body></html>\n"]


def _header(data: PageData, sections: list[Section]) -> Html:
    links = (element("a", each.title, href=f"#{each.id}") for each in sections)
    attempt = data.attempt_entry
    began = f"began {format_time(attempt.started_s)}" if attempt is not None else ""
    state = "going on" if data.live else "ended"
    if not data.live and attempt is not None and attempt.exit_code is None:
        state = "end not recorded"
    of_many = f"attempt {data.attempt}" if len(data.attempts) > 1 else ""
    return element(
        "header",
        element("h1", data.name),
        element("p", " · ".join(part for part in (began, state, of_many) if part), class_="small"),
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


REPORT_FILE = "report.html"


def write_report(
    run: str | Path, attempt: int | None = None, output: str | Path | None = None
) -> Path:
    """Write the page about a run and return its path.

    Args:
        run: The run's folder, or its name below the runs folder.
        attempt: The attempt's number; None: the latest with records.
        output: The file; None: report.html in the run's folder.

    Raises:
        UsageError: There is no such run, or the file cannot be written.
        RecordsError: It has no records, or a newer version wrote them.
    """
    data = read_page_data(open_records(run, attempt))
    return write_page(data, output if output is not None else data.path / REPORT_FILE)


def write_page(data: PageData, output: str | Path) -> Path:
    """Write the page from data already read, into a file or folder, and return its path.

    Raises:
        UsageError: The file cannot be written.
    """
    page = page_of(data)
    path = Path(output).expanduser()
    if path.is_dir():
        path /= REPORT_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page, durable=False)  # a browser may be reading it
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error}. Give another file with --output."
        ) from error
    return path.resolve()
