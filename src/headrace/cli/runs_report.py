"""Tracked runs in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.core.units import format_seconds
from headrace.decide.experiments.data_frames import TrackedRun
from headrace.report.formatting import MOST_DIGITS_BELOW

_VERDICT = "headrace.verdict"


def print_runs(runs: Sequence[TrackedRun], experiment: str | None) -> None:
    """Print a line a run."""
    console = Console(highlight=False)
    if not runs:
        of = f" of experiment {experiment}" if experiment else ""
        console.print(f"There are no runs{escape(of)}.")
        return
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="dim")
    for name in ("run", "experiment", "state", "begun"):
        table.add_column(name, overflow="fold")
    for name in ("ms/step", "data wait", "samples/s"):
        table.add_column(name, justify="right")
    for run in runs:
        table.add_row(
            escape(run.name), escape(run.experiment), run.state.lower(), _time(run.started_ms),
            _number(run.metrics.get("step_ms")), _percent(run.metrics.get("data_wait_share")),
            _number(run.metrics.get("samples_per_s")),
        )  # fmt: skip
    console.print(table)


def print_run(run: TrackedRun) -> None:
    """Print a run's verdict, params and metrics."""
    console = Console(highlight=False)
    console.print(f"[bold]{escape(run.experiment)} / {escape(run.name)}[/bold]: {_state(run)}")
    if _VERDICT in run.tags:
        console.print(escape(run.tags[_VERDICT]))
    _print_values(console, "param", run.params)
    numbers = {name: _number(each) for name, each in run.metrics.items()}
    _print_values(console, "metric", {**run.text_metrics, **numbers})
    series = {name: _number(each) for name, each in run.time_series.items()}
    _print_values(console, "time series, last value", series)
    console.print(f"[dim]MLflow's run {run.run_id}[/dim]")


def _state(run: TrackedRun) -> str:
    state = f"{run.state.lower()}, begun {_time(run.started_ms)}"
    if run.ended_ms is None:
        return state
    return f"{state}, {format_seconds((run.ended_ms - run.started_ms) / 1000)}"


def _print_values(console: Console, title: str, values: Mapping[str, str]) -> None:
    if not values:
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(title, overflow="fold")
    table.add_column("", overflow="fold")
    for name, value in sorted(values.items()):
        table.add_row(escape(name), escape(value))
    console.print(table)


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%b %d %H:%M")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    is_usual = 10_000 <= abs(value) < MOST_DIGITS_BELOW
    return f"{value:,.0f}" if is_usual else f"{value:,.4g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
