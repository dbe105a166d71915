"""The sections that say where the time went: the verdict, the findings, and charts of the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from headrace.core.units import format_seconds
from headrace.observe.doctor.diagnosis import change_phrase, main_remedy
from headrace.observe.doctor.findings import SEVERITIES, Cause, Finding, Remedy
from headrace.observe.whatif.tables import Floats, columns
from headrace.observe.whatif.train_steps import DeviceSteps, TrainSteps, read_steps
from headrace.records.redaction import redact_text
from headrace.records.run_folder import Attempt, Outcome
from headrace.records.schema import PHASES
from headrace.report.charts.base import time_axis
from headrace.report.charts.flame import CallRole, ProcessKind, flame_chart, has_samples
from headrace.report.charts.heatmap import heatmap_chart, heatmap_kinds
from headrace.report.charts.phases import MOST_RANKS, phases_chart
from headrace.report.charts.steps import MAX_RANKS, steps_a_column, steps_above, steps_chart
from headrace.report.charts.waits import read_waits_ms, waits_chart
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
    definitions,
    element,
    explanation,
    join_html,
    left_out_note,
    note,
    section,
    table,
)
from headrace.report.page_data import PageData, recorded_verdict
from headrace.report.run_command import command_with

TIMELINE_TITLE, HEATMAP_TITLE = "Steps over time", "How busy everything was"
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
    missing = f"By the accelerator's clock {lost:,} of these steps were not recorded."
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
        explanation(missing) if lost else None,
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
        *map(note, _part_notes(data)),
        *map(note, data.diagnosis.gaps),
        _tiles(data),
        _time(data),
        _phases(data),
    )


def _state_note(data: PageData) -> Html | None:
    attempt = data.attempt_entry
    what = f"attempt {data.attempt}" if data.has_followers else "the run"
    begin = what[:1].upper() + what[1:]
    if data.live:
        return note("The run is going on: this page shows what was recorded up to now.")
    if attempt is None:
        return None
    code = f"exit code {attempt.exit_code}"
    texts: dict[Outcome, str] = {
        "unknown": f"Whether {what} goes on is not known here: it began on "
        f"{attempt.launcher.get('host')}, and no end of it is recorded. The page shows what is "
        "recorded so far.",
        "killed": f"Nothing says how {what} ended: it was probably killed. The page shows what was "
        "recorded up to then.",
        "stopped": f"{begin} was stopped: {attempt.reason or code}.",
        "failed": f"{begin} failed: it ended with {code}.",
    }
    text = texts.get(data.outcome)
    return note(text) if text is not None else None


def _part_notes(data: PageData) -> Iterator[str]:
    """Yield what a page says that is about the last part of a long run."""
    if not data.part:
        return
    yield data.part
    is_of_this = not (data.live or data.has_followers)  # each attempt's takes the last one's place
    if is_of_this and (sentence := recorded_verdict(data.path, data.attempt).get("sentence")):
        yield f"Of the whole run, made when it ended: {sentence}"


def _tiles(data: PageData) -> Html | None:
    verdict = data.diagnosis.verdict
    tiles = []
    if verdict.data_wait_share is not None:
        who = "the accelerator waits" if verdict.device_phase_shares else "waits"
        tiles.append(_tile(format_share(verdict.data_wait_share), f"of step time {who} for data"))
    if verdict.step_ms is not None:
        step = f"{format_number(verdict.step_ms)} ms"
        tiles.append(_tile(step, "a step takes, on average"))
        tiles.append(_tile(f"{verdict.steps:,}", "steps looked at, without the first few"))
    best = main_remedy(data.diagnosis.findings)
    if best is not None:
        faster = f"{best.predicted_speedup:.1f}x"
        tiles.append(_tile(faster, f"as fast, predicted, {change_phrase(best)}"))
    return element("div", *tiles, class_="tiles") if tiles else None


def _tile(value: str, meaning: str) -> Html:
    return element("div", element("b", value), element("span", meaning), class_="tile")


_TIME_MEANINGS = {
    "steps": "steps",
    "evaluation": "evaluation",
    "passed_over": "batches fetched and passed over",
    "batch_lists": "batches fetched before the first of them is trained on",
    "between": "between epochs",
    "open": "what had not ended when the records end",
    "unrecorded": "while nothing was recorded",
}


def _time(data: PageData) -> Html | None:
    """Return what the whole time was spent on, where that is not nearly all in steps."""
    verdict = data.diagnosis.verdict
    if not verdict.time_shares:
        return None
    meanings = {
        meaning: f"{format_share(verdict.time_shares[part])}, "
        f"{format_seconds(round(verdict.time_shares[part] * verdict.run_seconds))}"
        for part, meaning in _TIME_MEANINGS.items()
        if verdict.time_shares.get(part, 0.0) >= _LEAST_SHARE
    }
    return join_html(
        element("h3", "What the run spends its time on"),
        explanation(
            "Its time is what follows start-up, which took "
            f"{format_seconds(round(verdict.start_seconds))}: until the first batch was asked for, "
            "and in imports of libraries after it."
        ),
        definitions(meanings, class_="phases"),
    )


_LEAST_SHARE = 0.005  # less would be shown as 0%
_TRAINING_STEP = (
    "A step is one round of training: take a batch, run the model, compute gradients, update the "
    "weights."
)
_BATCH_AS_STEP = "No optimizer was seen, so a step is one batch: take it, and run the model on it."


def _phases(data: PageData) -> Html | None:
    drawn = phases_chart(data.tables)
    if drawn is None:
        return None
    steps = read_steps(data.tables, any_kind=True)
    left_out = len(steps.ranks) - MOST_RANKS
    shares, by = data.diagnosis.verdict.phase_shares, "a bar for each rank"
    if left_out > 0:
        by = f"a bar for each of the first {MOST_RANKS} ranks"
    meanings = {
        phase_name(phase): f"{PHASE_MEANINGS[phase]}: {format_share(part)}"
        for phase, part in shares.items()
        if part > 0
    }
    details = definitions(meanings, class_="phases")
    if steps.device is not None:
        details = both_clocks(steps, steps.device)
        by += ", and one for its accelerator by its own clock"
    head, what = "What a training step spends its time on", _TRAINING_STEP
    if steps.kind != "train":
        head, what = "What a batch spends its time on", _BATCH_AS_STEP
    return join_html(
        element("h3", head),
        explanation(
            f"{what} A rank is one process that runs the model. The bars show the mean of "
            f"{format_count(data.diagnosis.verdict.steps, 'step')}."
        ),
        data.chart_place("phases", f"Mean time of a step by phase, {by}", drawn),
        left_out_note(left_out, "rank"),
        details,
    )


_LINES_AROUND = 4
_LARGEST_BYTES = 1_000_000
_LONGEST_LINE = 160


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
    shown = redact_text(text, is_code=True)
    return shown if len(shown) <= _LONGEST_LINE else shown[: _LONGEST_LINE - 1] + "…"


_SCALE_PX = 140


def findings_section(data: PageData) -> Section:
    """Return the section of findings, worst first."""
    found = data.diagnosis.findings
    if not found:
        why = "Nothing was found that slows this run down."
        if not columns(data.tables, "steps").count:
            why = "No step was recorded, so there is nothing to find fault with."
        return section("findings", "Findings", note(why))
    return section(
        "findings",
        "Findings",
        explanation(
            "What slows this run down, worst first. Each says what was seen, which code causes it, "
            "and what would help. Speed-ups are predicted by simulating this run with the change; "
            "nine times in ten the true value should lie within the interval."
        ),
        *(_finding(place, finding, data.attempt_entry) for place, finding in enumerate(found, 1)),
    )


def _finding(place: int, finding: Finding, attempt: Attempt | None) -> Html:
    began_s = attempt.started_s if attempt is not None else None
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
        _remedies(finding, attempt),
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


def _remedies(finding: Finding, attempt: Attempt | None) -> Html | None:
    remedies = finding.remedies
    if not remedies:
        return None
    times = "times that of such a run" if finding.forecast else "times today's"
    least = min(0.95, *(remedy.low or 1.0 for remedy in remedies))
    most = max(1.5, *(remedy.high or 1.0 for remedy in remedies))
    rows = []
    for remedy in remedies:
        how = element("div", remedy.how, class_="how")
        command = _command(command_with(attempt, remedy.overrides))
        change = join_html(element("b", remedy.change or remedy.name), how, command)
        rows.append((change, _speedup(remedy, least, most)))
    return join_html(
        element("p", element("b", "What would help")),
        table(("Change, and how to make it", f"Predicted speed, {times}"), rows),
    )


def _command(command: str | None) -> Html | None:
    """Return a command line with a button that copies it."""
    if command is None:
        return None
    button = element("button", "Copy", type="button", class_="copy", data_copy=command)
    return element("div", element("code", command), " ", button, class_="command")


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


def timeline_section(data: PageData) -> Section:
    """Return the section with every step over time."""
    title = TIMELINE_TITLE
    steps = columns(data.tables, "steps").count
    if not steps and not data.of_a_span:
        why = "No step was recorded: a step is counted at each call of an optimizer's step()."
        return section("timeline", title, note(why))
    return section(
        "timeline",
        title,
        explanation(_timeline_explanation(data) if steps else "No step is in this span of time."),
        data.place_of(
            "timeline", "Phases of every step over time, a row for each rank", steps_chart
        ),
    )


def _timeline_explanation(data: PageData) -> str:
    steps = columns(data.tables, "steps")
    shown = "Each step stands where it happened; its height is how long it took, its colours what"
    sentences = [f"{shown} it did. Orange is time without data."]
    sentences.append("Drag to zoom in, double-click to see all.")
    sentences.append("By keys: arrows go over the steps, comma and full stop move in time.")
    if (steps["kind"] == "eval").any():
        sentences.append("Behind grey shades the model was evaluated, not trained.")
    a_column = steps_a_column(steps)
    if a_column > 1:
        sentences.append(
            f"A column stands for up to {a_column:,} steps: of data wait, gradient sync and other "
            "it shows the longest, so that short stalls are seen; of the rest, the mean."
        )
    # The axes of a page about a part of the time are those of the whole run.
    is_whole = not (data.of_a_span or data.part)
    if is_whole and time_axis(data.tables).is_cut:
        sentences.append("What was before the first and after the last step is left out at first.")
    above = steps_above(steps) if is_whole else 0
    if above:
        longest_ms = float(steps["wall_ns"].max() / 1e6)
        sentences.append(
            f"{format_count(above, 'step')} reached above the top, as arrows there show; the "
            f"longest took {format_number(longest_ms)} ms."
        )
    ranks = len(np.unique(steps["rank"]))
    if ranks > MAX_RANKS:
        sentences.append(
            f"Shown are the {MAX_RANKS} of {ranks} ranks that waited longest for data."
        )
    return " ".join(sentences)


_HEATMAP_MEANINGS = {
    "ranks": "a rank (a training process) is busy when it does not wait for data: of each moment, "
    "its worst step is shown",
    "GPUs": "a GPU is busy while anything runs on it: of each moment, the lowest value is shown",
    "workers": "a worker (a process that prepares data) is busy while it makes a batch",
    "cores": "a core (of the CPU) is busy with anything, also with other programs",
}


def heatmap_section(data: PageData) -> Section:
    """Return the section with the heatmap."""
    bands, title = heatmap_kinds(data.tables), HEATMAP_TITLE
    if not bands:
        return section("heatmap", title, note("Nothing of this was recorded."))
    meanings = "; ".join(_HEATMAP_MEANINGS[band] for band in bands)
    gpus = "" if "GPUs" in bands else " No GPU was recorded."
    return section(
        "heatmap",
        title,
        explanation(
            "Yellow is busy, dark is idle, hatched is not there. Dark ranks or GPUs over yellow "
            "workers or cores: data is made too slowly. "
            f"{meanings[:1].upper()}{meanings[1:]}.{gpus}"
        ),
        data.place_of(
            "heatmap",
            "Share of time busy of every rank, GPU, worker and core over time",
            heatmap_chart,
        ),
    )


def waits_section(data: PageData) -> Section:
    """Return the section with the waits for batches."""
    waits_ms, title = read_waits_ms(data.tables), "Waits for data"
    if waits_ms is None:
        why = "the script uses no data loader that is known, or it took no batch."
        return section("waits", title, note(f"No wait for a batch was recorded: {why}"))
    return section(
        "waits",
        title,
        explanation(
            "How long a rank waited each time it asked for the next batch to train on. A batch "
            "that is ready takes a fraction of a millisecond; a wait longer than that is time in "
            "which the accelerator has nothing to do. Grey bars count the waits, orange bars the "
            "time that they took together: a few long ones can matter more than many short "
            "ones. Each mark on the axis is ten times the one before it."
        ),
        data.place_of(
            "waits", "Waits by their length: their number, and the time they took", waits_chart
        ),
        element("p", _waits_summary(waits_ms)),
    )


def _waits_summary(waits_ms: Floats) -> str:
    percentiles_ms = np.percentile(waits_ms, (50, 95, 100))
    half, most, longest = (format_number(float(wait_ms)) for wait_ms in percentiles_ms)
    count = max(round(0.01 * len(waits_ms)), 1)
    share = float(waits_ms[-count:].sum() / max(waits_ms.sum(), 1e-12))
    return (
        f"{format_count(len(waits_ms), 'wait')}: half took at most {half} ms, 95% at most {most} "
        f"ms, the longest {longest} ms. The longest 1% make up {format_share(share)} of all "
        "waiting."
    )


_FLAME_TITLES: dict[ProcessKind, str] = {
    "workers": "In the workers, while they made batches",
    "ranks": "In the ranks: the training loop itself",
}


def flame_section(data: PageData) -> Section:
    """Return the section with the flame views."""
    title = "Which code ran"
    parts = [part for where in _FLAME_TITLES if (part := _flame_chart(data, where)) is not None]
    if not parts:
        return section("flame", title, note("No code was sampled."))
    return section(
        "flame",
        title,
        explanation(
            "Every process was looked at many times a second. The wider a box, the longer that "
            "function and what it calls was seen; each box is called by the one above it. ",
            _swatch("user"),
            " your code, with its busiest line; ",
            _swatch("library"),
            " libraries and Python itself. Click a box to look closer, and the top one to go back.",
        ),
        *parts,
    )


def _flame_chart(data: PageData, where: ProcessKind) -> Html | None:
    if not has_samples(data.tables, where):
        return None
    title, draw = _FLAME_TITLES[where], partial(flame_chart, where=where)
    place = data.place_of(f"flame-{where}", f"{title}: functions by time", draw)
    return join_html(element("h3", title), place)


def _swatch(role: CallRole) -> Html:
    return element("span", class_=f"swatch {role}")
