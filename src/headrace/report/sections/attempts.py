"""The section of a run's attempts: when each began, how long it lasted, how it ended."""

from __future__ import annotations

from headrace.core.units import format_seconds
from headrace.decide.cost.run_use import seen_until_s
from headrace.records.run_folder import Attempt, Outcome
from headrace.report.charts.attempts import attempts_chart
from headrace.report.formatting import UNKNOWN, format_time
from headrace.report.markup import Section, element, explanation, section, table
from headrace.report.page_data import PageData

_HEAD = ("Attempt", "Began", "How it ended", "Lasted")


def attempts_section(data: PageData) -> Section | None:
    """Return the section; None of a run whose only attempt goes on, or succeeded."""
    outcomes = data.outcomes
    if len(outcomes) < 2 and not set(outcomes) & {"failed", "killed"}:
        return None
    seen_s = seen_until_s(data.path, data.attempts[-1], outcomes[-1])
    chart = attempts_chart(data.attempts, outcomes, seen_s)
    return section(
        "attempts",
        "Attempts",
        explanation(
            f"This page is about attempt {data.attempt}. Each began where the checkpoint of the "
            "one before it was, if the script kept one."
            if len(outcomes) > 1
            else ""
        ),
        data.chart_place("attempts", "When each attempt began, and how long it lasted", chart),
        table(
            _HEAD,
            [
                (_number(attempt, data), *_texts(attempt, outcome))
                for attempt, outcome in zip(data.attempts, outcomes, strict=True)
            ],
            numbers=1,
        ),
    )


def _number(attempt: Attempt, data: PageData) -> str:
    """Return an attempt's number; on a server's page a link to what is recorded of it."""
    number = f"{attempt.number}"
    is_alone = data.charts_inside or len(data.attempts) < 2
    return number if is_alone else element("a", number, href=f"?attempt={number}")


def _texts(attempt: Attempt, outcome: Outcome) -> tuple[str, ...]:
    lasted = UNKNOWN
    if attempt.lasted_s is not None:
        lasted = format_seconds(attempt.lasted_s)
    why = attempt.reason or (f"exit code {attempt.exit_code}" if attempt.exit_code else "")
    if outcome == "unknown":
        why = f"it began on {attempt.launcher['host']}"
    how = ": ".join(filter(None, (outcome, why)))
    return format_time(attempt.started_s), how, lasted
