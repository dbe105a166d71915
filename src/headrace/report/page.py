"""The page: one self-contained HTML document, made of sections."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from importlib.resources import files

from headrace.report.markup import Html, element, joined
from headrace.report.material import Material
from headrace.report.section import Section
from headrace.report.sections.auxiliary import auxiliary
from headrace.report.sections.facts import facts
from headrace.report.sections.findings import findings
from headrace.report.sections.flame import flame_section
from headrace.report.sections.heatmap import heatmap_section
from headrace.report.sections.timeline import timeline_section
from headrace.report.sections.transforms import transforms
from headrace.report.sections.verdict import verdict
from headrace.report.sections.waits import waits_section
from headrace.report.sections.words import words
from headrace.report.sections.workers import workers
from headrace.report.telling import moment

SECTIONS: tuple[Callable[[Material], Section | None], ...] = (
    verdict,
    findings,
    timeline_section,
    heatmap_section,
    waits_section,
    transforms,
    workers,
    auxiliary,
    flame_section,
    facts,
    words,
)
"""The page's sections, in the order in which they are read."""


def page_of(material: Material) -> str:
    """Return the page about a run, as HTML.

    It loads nothing: what it needs is in it, and its policy forbids the browser to fetch or to
    run anything else, whatever the records hold.

    Args:
        material: What is known of the run.
    """
    sections = [made for make in SECTIONS if (made := make(material)) is not None]
    scripts = (_plotly(), _asset("page.js"))
    head = joined(
        (
            element("meta", charset="utf-8"),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">'),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("title", f"{material.name} · Headrace report"),
            element("style", Html(_asset("page.css"))),
        )
    )
    body = joined(
        (
            _header(material, sections),
            element("main", *(each.html for each in sections)),
            element("footer", "Made by Headrace. The page loads nothing from anywhere."),
            *(element("script", Html(script)) for script in scripts),
        )
    )
    whole = element("html", element("head", head), element("body", body), lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"


def _header(material: Material, sections: list[Section]) -> Html:
    links = (element("a", each.title, href=f"#{each.id}") for each in sections)
    attempt = material.told
    began = f"began {moment(attempt.started_s)}" if attempt is not None else ""
    state = "going on" if material.live else "ended"
    if not material.live and attempt is not None and attempt.exit_code is None:
        state = "end not recorded"
    of_many = f"attempt {material.attempt}" if len(material.attempts) > 1 else ""
    return element(
        "header",
        element("h1", material.name),
        element("p", " · ".join(part for part in (began, state, of_many) if part), class_="small"),
        element("nav", *links, aria_label="Sections"),
        element(
            "noscript",
            element("p", "The charts need JavaScript; everything else is readable without.",
                    class_="note"),
        ),
        class_="top",
    )  # fmt: skip


def _policy(scripts: tuple[str, ...]) -> str:
    """Return the content policy: these very scripts, styles in the page, nothing else."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    return files("headrace.report").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    source = files("plotly").joinpath("package_data/plotly.min.js").read_text(encoding="utf-8")
    return source.replace("\r\n", "\n")  # as the browser reads it, or its hash would differ
