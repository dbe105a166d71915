"""The sections of the diagnosis: the verdict with its numbers, and the findings with their code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from headrace.core.units import format_seconds
from headrace.observe.doctor.diagnosis import change_phrase, main_remedy
from headrace.observe.doctor.findings import SEVERITIES, Cause, Finding, Remedy
from headrace.observe.whatif.train_steps import DeviceSteps, TrainSteps, read_steps
from headrace.records.redaction import HIDDEN, redact
from headrace.records.schema import PHASES
from headrace.report.figures.step_phases import phase_bars
from headrace.report.formatting import (
    PHASE_MEANINGS,
    format_count,
    format_fact,
    format_milliseconds,
    format_number,
    format_share,
    phase_name,
)
from headrace.report.markup import (
    Html,
    Section,
    chart,
    definitions,
    element,
    explanation,
    join_html,
    note,
    section,
    table,
)
from headrace.report.page_data import PageData

_BOTH_CLOCKS_HEAD = (
    "Phase",
    "",
    "Script, a step",
    "of its time",
    "Accelerator, a step",
    "of its time",
)


def both_clocks(steps: TrainSteps, device: DeviceSteps) -> Html:
    """Return the table of phases by both clocks, and the accelerator's share of data wait."""
    rows = [
        (
            element("b", phase_name(phase)),
            PHASE_MEANINGS[phase],
            format_milliseconds(steps.phase_ns(phase).mean()),
            format_share(steps.share(phase)),
            format_milliseconds(device.phase_ns(phase).mean()),
            format_share(device.share(phase)),
        )
        for phase in PHASES
        if steps.share(phase) > 0 or device.share(phase) > 0
    ]
    lost = int((~device.known).sum())
    idle = (
        "The accelerator had nothing to do for want of data in "
        f"{format_share(device.share('data_wait'))} of its time; the script waited for data in "
        f"{format_share(steps.share('data_wait'))} of its own."
    )
    return join_html(
        element("p", idle),
        table(_BOTH_CLOCKS_HEAD, rows, numbers=4),
        explanation(
            "The script only queues work for the accelerator, which comes to it later, so the "
            "two need not agree: while there is work in the queue, the script may wait without "
            "costing anything. Gaps between the kernels of one phase count for that phase; "
            "how busy the GPU itself was, where that was recorded, is in the heatmap."
        ),
        explanation(f"By the accelerator's clock {lost:,} of these steps were not recorded.")
        if lost
        else None,
    )


def verdict_section(data: PageData) -> Section:
    """Return the section with the verdict: where the time went."""
    verdict = data.diagnosis.verdict
    severities = [finding.severity for finding in data.diagnosis.findings]
    worst = max(severities, key=SEVERITIES.index, default="none")
    return section(
        "verdict",
        "Verdict",
        element("p", verdict.sentence, class_=f"sentence {worst}"),
        _state_note(data),
        *map(note, data.diagnosis.gaps),
        _tiles(data),
        _phases(data),
    )


def _state_note(data: PageData) -> Html | None:
    attempt = data.attempt_entry
    if data.live:
        return note("The run is going on: this page shows what was recorded up to now.")
    if attempt is not None and attempt.exit_code is None:
        return note(
            "Nothing says how the run ended: it was probably killed. "
            "The page shows what was recorded up to then."
        )
    if attempt is not None and attempt.exit_code:
        return note(f"The run failed: it ended with exit code {attempt.exit_code}.")
    return None


def _tiles(data: PageData) -> Html | None:
    verdict = data.diagnosis.verdict
    tiles = []
    if verdict.data_wait_share is not None:
        who = "the accelerator waits" if verdict.device_phase_shares else "waits"
        tiles.append(_tile(format_share(verdict.data_wait_share), f"of step time {who} for data"))
    if verdict.step_ms is not None:
        step = f"{format_number(verdict.step_ms)} ms"
        tiles.append(_tile(step, "a training step takes, on average"))
        tiles.append(_tile(f"{verdict.steps:,}", "training steps looked at, without the first few"))
    best = main_remedy(data.diagnosis.findings)
    if best is not None:
        faster = f"{best.predicted_speedup:.1f}x"
        tiles.append(_tile(faster, f"as fast, predicted, {change_phrase(best)}"))
    return element("div", *tiles, class_="tiles") if tiles else None


def _tile(value: str, meaning: str) -> Html:
    return element("div", element("b", value), element("span", meaning), class_="tile")


def _phases(data: PageData) -> Html | None:
    figure = phase_bars(data.tables)
    if figure is None:
        return None
    steps = read_steps(data.tables)
    details, by = _meanings(data), "a bar for each rank"
    if steps.device is not None:
        details = both_clocks(steps, steps.device)
        by = "a bar for each rank, and one for its accelerator by its own clock"
    return join_html(
        element("h3", "What a training step spends its time on"),
        explanation(
            "A step is one round of training: take a batch, run the model, compute gradients, "
            "update the weights. A rank is one training process. "
            "The bars show the mean of "
            f"{format_count(data.diagnosis.verdict.steps, 'step')}."
        ),
        chart("phases", figure, f"Mean time of a step by phase, {by}"),
        details,
    )


def _meanings(data: PageData) -> Html:
    shares = data.diagnosis.verdict.phase_shares
    meanings = {
        phase_name(phase): f"{PHASE_MEANINGS[phase]}: {format_share(part)}"
        for phase, part in shares.items()
        if part > 0
    }
    return definitions(meanings, class_="phases")


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
    lost = f" · {format_seconds(finding.seconds_lost)} of each rank's time lost"
    head = element(
        "header",
        element("span", finding.severity, class_=f"badge {finding.severity}"),
        element("h3", f"{place}. {finding.title[:1].upper()}{finding.title[1:]}"),
    )
    shown = lost if finding.seconds_lost >= 0.05 else None
    small = element("p", element("code", finding.rule), shown, class_="small")
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
    rows = []
    for remedy in remedies:
        how = element("div", remedy.how, class_="how")
        change = join_html(element("b", remedy.change or remedy.name), how)
        rows.append((change, _speedup(remedy, least, most)))
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
    speed = element("b", f"{remedy.predicted_speedup:.1f}x")
    return join_html(speed, remedy.interval, element("br"), bar)
