"""The findings: what was seen, why, and what would help."""

from __future__ import annotations

from headrace.core.units import format_seconds
from headrace.observe.doctor.model import Cause, Finding, Remedy
from headrace.report.markup import Html, element, joined, table
from headrace.report.material import Material
from headrace.report.section import Section, explained, note, section
from headrace.report.source import read_excerpt
from headrace.report.telling import fact_told, share

_SCALE_PX = 140


def findings(material: Material) -> Section:
    """Return the section of findings, worst first."""
    found = material.diagnosis.findings
    if not found:
        return section("findings", "Findings", note(_why_none(material)))
    attempt = material.told
    began_s = attempt.started_s if attempt is not None else None
    return section(
        "findings",
        "Findings",
        explained(
            "What slows this run down, worst first. Each says what was seen, which code causes it, "
            "and what would help. Speed-ups are predicted by simulating this run with the change; "
            "nine times in ten the true value should lie within the interval."
        ),
        *(_finding(place, finding, began_s) for place, finding in enumerate(found, start=1)),
    )


def _why_none(material: Material) -> str:
    if not material.has_steps:
        return "No step was recorded, so there is nothing to find fault with."
    return "Nothing was found that slows this run down."


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
    part = f", {share(cause.share)} of the time" if cause.share > 0 else ""
    told = element(
        "p",
        element("b", "Cause: "),
        element("code", f"{cause.file}:{cause.line}" if cause.line else cause.file),
        f" {' · '.join(what)}{part}",
    )
    return joined((told, _source(cause, began_s)))


def _source(cause: Cause, began_s: float | None) -> Html | None:
    excerpt = read_excerpt(cause.file, cause.line, began_s)
    if excerpt is None:
        return None
    lines = joined(
        element(
            "span",
            element("i", str(number)),
            text or " ",
            class_="line at-fault" if number == cause.line else "line",
        )
        for number, text in enumerate(excerpt.lines, start=excerpt.first)
    )
    changed = note("This file was written after the run began: the lines may have moved.")
    return joined((element("pre", lines, class_="source"), changed if excerpt.changed else None))


def _evidence(finding: Finding) -> Html | None:
    facts = [fact_told(name, fact) for name, fact in finding.evidence.items() if fact is not None]
    if not facts:
        return None
    rows = joined(
        element("div", element("dt", words), element("dd", value)) for words, value in facts
    )
    return joined((element("p", element("b", "Evidence")), element("dl", rows, class_="evidence")))


def _remedies(finding: Finding) -> Html | None:
    remedies = finding.remedies
    if not remedies:
        return None
    times = "times that of such a run" if finding.foretold else "times today's"
    least = min(0.95, *(remedy.low or 1.0 for remedy in remedies))
    most = max(1.5, *(remedy.high or 1.0 for remedy in remedies))
    rows = [
        (
            joined(
                (
                    element("b", remedy.change or remedy.name),
                    element("div", remedy.how, class_="how"),
                )
            ),
            _speedup(remedy, least, most),
        )
        for remedy in remedies
    ]
    return joined(
        (
            element("p", element("b", "What would help")),
            table(("Change, and how to make it", f"Predicted speed, {times}"), rows),
        )
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
    return joined(
        (
            element("b", f"{remedy.predicted_speedup:.1f}x"),
            remedy.interval,
            element("br"),
            bar,
        )
    )
