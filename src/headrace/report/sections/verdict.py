"""The section of the verdict: one sentence, its numbers, and phases by both clocks."""

from __future__ import annotations

from headrace.observe.doctor.findings import SEVERITIES
from headrace.observe.doctor.verdict import change_phrase, main_remedy
from headrace.observe.whatif.train_steps import DeviceSteps, TrainSteps, read_steps
from headrace.records.schema import PHASES
from headrace.report.figures.step_phases import phase_bars
from headrace.report.formatting import (
    PHASE_MEANINGS,
    format_count,
    format_milliseconds,
    format_number,
    format_share,
    phase_name,
)
from headrace.report.markup import (
    Html,
    Section,
    chart,
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
        tiles.append(
            _tile(f"{format_number(verdict.step_ms)} ms", "a training step takes, on average")
        )
        tiles.append(_tile(f"{verdict.steps:,}", "training steps looked at, without the first few"))
    best = main_remedy(data.diagnosis.findings)
    if best is not None:
        tiles.append(
            _tile(f"{best.predicted_speedup:.1f}x", f"as fast, predicted, {change_phrase(best)}")
        )
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
    meanings = join_html(
        *(
            join_html(
                element("dt", phase_name(phase)),
                element("dd", f"{PHASE_MEANINGS[phase]}: {format_share(part)}"),
            )
            for phase, part in shares.items()
            if part > 0
        )
    )
    return element("dl", meanings, class_="phases")
