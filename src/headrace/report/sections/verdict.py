"""The verdict: one sentence, and the numbers it rests on."""

from __future__ import annotations

from headrace.observe.doctor.model import SEVERITIES
from headrace.observe.doctor.verdict import given, what_helps_most
from headrace.observe.whatif.steps import read_steps
from headrace.report.charts import chart
from headrace.report.figures.phases import phases
from headrace.report.markup import Html, element, joined
from headrace.report.material import Material
from headrace.report.section import Section, explained, note, section
from headrace.report.sections.clocks import both_clocks
from headrace.report.telling import PHASE_MEANINGS, counted, number, phase_name, share


def verdict(material: Material) -> Section:
    """Return the section that says in one sentence where the time went."""
    told = material.diagnosis.verdict
    severities = [finding.severity for finding in material.diagnosis.findings]
    worst = max(severities, key=SEVERITIES.index, default="none")
    return section(
        "verdict",
        "Verdict",
        element("p", told.sentence, class_=f"sentence {worst}"),
        _state(material),
        *map(note, material.diagnosis.gaps),
        _tiles(material),
        _phases(material),
    )


def _state(material: Material) -> Html | None:
    attempt = material.told
    if material.live:
        return note("The run is going on: this page shows what was recorded up to now.")
    if attempt is not None and attempt.exit_code is None:
        return note(
            "Nothing says how the run ended: it was probably killed. "
            "The page shows what was recorded up to then."
        )
    if attempt is not None and attempt.exit_code:
        return note(f"The run failed: it ended with exit code {attempt.exit_code}.")
    return None


def _tiles(material: Material) -> Html | None:
    told = material.diagnosis.verdict
    tiles = []
    if told.data_wait_share is not None:
        who = "the accelerator waits" if told.device_phase_shares else "waits"
        tiles.append(_tile(share(told.data_wait_share), f"of step time {who} for data"))
    if told.step_ms is not None:
        tiles.append(_tile(f"{number(told.step_ms)} ms", "a training step takes, on average"))
        tiles.append(_tile(f"{told.steps:,}", "training steps looked at, without the first few"))
    best = what_helps_most(material.diagnosis.findings)
    if best is not None:
        tiles.append(_tile(f"{best.predicted_speedup:.1f}x", f"as fast, predicted, {given(best)}"))
    return element("div", *tiles, class_="tiles") if tiles else None


def _tile(value: str, meaning: str) -> Html:
    return element("div", element("b", value), element("span", meaning), class_="tile")


def _phases(material: Material) -> Html | None:
    figure = phases(material.tables)
    if figure is None:
        return None
    steps = read_steps(material.tables)
    told, by = _meanings(material), "a bar for each rank"
    if steps.device is not None:
        told = both_clocks(steps, steps.device)
        by = "a bar for each rank, and one for its accelerator by its own clock"
    return joined(
        (
            element("h3", "What a training step spends its time on"),
            explained(
                "A step is one round of training: take a batch, run the model, compute gradients, "
                "update the weights. A rank is one training process. "
                f"The bars show the mean of {counted(material.diagnosis.verdict.steps, 'step')}."
            ),
            chart("phases", figure, f"Mean time of a step by phase, {by}"),
            told,
        )
    )


def _meanings(material: Material) -> Html:
    shares = material.diagnosis.verdict.phase_shares
    meanings = joined(
        joined(
            (
                element("dt", phase_name(phase)),
                element("dd", f"{PHASE_MEANINGS[phase]}: {share(part)}"),
            )
        )
        for phase, part in shares.items()
        if part > 0
    )
    return element("dl", meanings, class_="phases")
