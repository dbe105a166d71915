"""The section of findings: what was found, its cause with lines of code, and remedies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from headrace.core.units import format_seconds
from headrace.observe.doctor.findings import Cause, Finding, Remedy
from headrace.records.redaction import HIDDEN, redact
from headrace.report.formatting import format_fact, format_share
from headrace.report.markup import (
    Html,
    Section,
    element,
    explanation,
    join_html,
    note,
    section,
    table,
)
from headrace.report.page_data import PageData

_LINES_AROUND = 4
_LARGEST_BYTES = 1_000_000
_LONGEST_LINE = 160
_SECRET = re.compile(
    r"((?:token|secret|passw|credential|signature|(?:api|access|private)[-_]?key)\w*"
    r"[\"']?\]?\s*[=:,]\s*[a-z]{0,2})([\"']).*?(?:\2|$)",
    re.IGNORECASE,
)
"""A literal that is assigned or passed to a name that suggests a secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceExcerpt:
    """Lines of a source file."""

    first: int
    lines: tuple[str, ...]  # with secrets hidden
    changed: bool  # since the run began: lines may have moved


def read_excerpt(file: str, line: int, began_s: float | None) -> SourceExcerpt | None:
    """Return the lines around a line, with `began_s` of the run; None if they cannot be read.

    Only Python source is read, because the path comes from records, and a page may be passed on.
    """
    path = Path(file)
    try:
        if line < 1 or path.suffix != ".py" or not path.is_absolute() or not path.is_file():
            return None
        status = path.stat()
        if status.st_size > _LARGEST_BYTES:
            return None
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return None
    if line > len(lines):
        return None
    first = max(line - _LINES_AROUND, 1)
    return SourceExcerpt(
        first=first,
        lines=tuple(_redacted(text) for text in lines[first - 1 : line + _LINES_AROUND]),
        changed=began_s is not None and status.st_mtime > began_s,
    )


def _redacted(text: str) -> str:
    indent = text[: len(text) - len(text.lstrip())]
    hidden = _SECRET.sub(rf"\g<1>\g<2>{HIDDEN}\g<2>", text)
    words = (redact((word,))[0] if "://" in word else word for word in hidden.lstrip().split(" "))
    shown = indent + " ".join(words)
    return shown if len(shown) <= _LONGEST_LINE else shown[: _LONGEST_LINE - 1] + "…"


_SCALE_PX = 140


def findings_section(data: PageData) -> Section:
    """Return the section of findings, worst first."""
    found = data.diagnosis.findings
    if not found:
        why = "Nothing was found that slows this run down."
        if not data.has_steps:
            why = "No step was recorded, so there is nothing to find fault with."
        return section("findings", "Findings", note(why))
    attempt = data.attempt_entry
    began_s = attempt.started_s if attempt is not None else None
    return section(
        "findings",
        "Findings",
        explanation(
            "What slows this run down, worst first. Each says what was seen, which code causes it, "
            "and what would help. Speed-ups are predicted by simulating this run with the change; "
            "nine times in ten the true value should lie within the interval."
        ),
        *(_finding(place, finding, began_s) for place, finding in enumerate(found, start=1)),
    )


def _finding(place: int, finding: Finding, began_s: float | None) -> Html:
    lost = (
        f"{format_seconds(finding.seconds_lost)} of each rank's time lost"
        if finding.seconds_lost >= 0.05
        else None
    )
    head = element(
        "header",
        element("span", finding.severity, class_=f"badge {finding.severity}"),
        element("h3", f"{place}. {finding.title[:1].upper()}{finding.title[1:]}"),
    )
    small = element(
        "p",
        element("code", finding.rule),
        f" · {lost}" if lost else None,
        class_="small",
    )
    return element(
        "article",
        head,
        small,
        _cause(finding.cause, began_s),
        _evidence(finding),
        _remedies(finding),
        class_=f"finding {finding.severity}",
    )


def _cause(cause: Cause | None, began_s: float | None) -> Html | None:
    if cause is None or not cause.file:
        return None
    what = [part for part in (cause.transform, cause.function.replace(" > ", ", in its call of "))
            if part and part != "<module>"]  # fmt: skip
    part = f", {format_share(cause.share)} of the time" if cause.share > 0 else ""
    text = element(
        "p",
        element("b", "Cause: "),
        element("code", f"{cause.file}:{cause.line}" if cause.line else cause.file),
        f" {' · '.join(what)}{part}",
    )
    return join_html(text, _source_lines(cause, began_s))


def _source_lines(cause: Cause, began_s: float | None) -> Html | None:
    excerpt = read_excerpt(cause.file, cause.line, began_s)
    if excerpt is None:
        return None
    lines = join_html(
        *(
            element(
                "span",
                element("i", str(number)),
                text or " ",
                class_="line at-fault" if number == cause.line else "line",
            )
            for number, text in enumerate(excerpt.lines, start=excerpt.first)
        )
    )
    changed = note("This file was written after the run began: the lines may have moved.")
    return join_html(element("pre", lines, class_="source"), changed if excerpt.changed else None)


def _evidence(finding: Finding) -> Html | None:
    facts = [format_fact(name, fact) for name, fact in finding.evidence.items() if fact is not None]
    if not facts:
        return None
    rows = join_html(
        *(element("div", element("dt", words), element("dd", value)) for words, value in facts)
    )
    return join_html(element("p", element("b", "Evidence")), element("dl", rows, class_="evidence"))


def _remedies(finding: Finding) -> Html | None:
    remedies = finding.remedies
    if not remedies:
        return None
    times = "times that of such a run" if finding.forecast else "times today's"
    least = min(0.95, *(remedy.low or 1.0 for remedy in remedies))
    most = max(1.5, *(remedy.high or 1.0 for remedy in remedies))
    rows = [
        (
            join_html(
                element("b", remedy.change or remedy.name),
                element("div", remedy.how, class_="how"),
            ),
            _speedup(remedy, least, most),
        )
        for remedy in remedies
    ]
    return join_html(
        element("p", element("b", "What would help")),
        table(("Change, and how to make it", f"Predicted speed, {times}"), rows),
    )


def _speedup(remedy: Remedy, least: float, most: float) -> Html:
    if remedy.predicted_speedup is None or remedy.low is None or remedy.high is None:
        return element("span", "not predicted", class_="small")
    scale = _SCALE_PX / (most - least)
    today, low, best, high = (
        4 + (speed - least) * scale
        for speed in (1.0, remedy.low, remedy.predicted_speedup, remedy.high)
    )
    bar = element(
        "svg",
        element("line", x1=f"{today:.1f}", x2=f"{today:.1f}", y1="0", y2="16", class_="today"),
        element("line", x1=f"{low:.1f}", x2=f"{high:.1f}", y1="8", y2="8", class_="interval"),
        element("circle", cx=f"{best:.1f}", cy="8", r="4", class_="best"),
        width=str(_SCALE_PX + 8),
        height="16",
        role="img",
        aria_label="the interval on a scale; the thin line is today's speed",
    )
    return join_html(
        element("b", f"{remedy.predicted_speedup:.1f}x"),
        remedy.interval,
        element("br"),
        bar,
    )
