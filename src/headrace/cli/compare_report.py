"""Comparisons of runs in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.core.units import format_usd
from headrace.decide.cost.run_use import Utilisation
from headrace.decide.experiments.compared_runs import ComparedRun, fastest_sentence
from headrace.observe.whatif.comparison import Comparison
from headrace.platforms.instance_groups import AUXILIARY, TRAINING
from headrace.records.schema import PHASES
from headrace.report.formatting import format_share


def print_compared_runs(runs: Sequence[ComparedRun]) -> None:
    """Print runs, the first being what others are compared with; of two each phase's change."""
    console = Console(highlight=False)
    pair = runs[1].comparison if len(runs) == 2 else None
    if pair is not None:
        _print_comparison(console, pair, runs[0].name, runs[1].name)
    else:
        _print_several(console, runs)
    console.print(_use_table(runs))


def _print_comparison(console: Console, comparison: Comparison, before: str, after: str) -> None:
    console.print(f"[bold]{escape(_sentence(comparison, after))}[/bold]")
    for setting in comparison.settings:
        console.print(
            f"{escape(setting.setting)}: {escape(setting.before)} -> {escape(setting.after)}"
        )
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("ms a step")
    for name in (before, after, "change", "90% interval"):
        table.add_column(name, justify="right", overflow="fold")
    for change in (*comparison.phases, comparison.step):
        interval = f"{change.low_ms:+,.2f} to {change.high_ms:+,.2f}"
        interval_text = interval if change.differ else f"[dim]noise: {interval}[/dim]"
        name = change.phase.replace("_", " ")
        table.add_row(name, *_numbers(change.before_ms, change.after_ms), interval_text)
    if comparison.before_samples_per_s and comparison.after_samples_per_s:
        rates = comparison.before_samples_per_s, comparison.after_samples_per_s
        table.add_row("[dim]samples/s[/dim]", *_numbers(*rates))
    console.print(table)
    console.print(
        f"[dim]{comparison.before_steps:,} and {comparison.after_steps:,} steps; "
        f"90% intervals (of all phases together) by resampling blocks of steps[/dim]"
    )


def _use_table(runs: Sequence[ComparedRun]) -> Table:
    """Return how busy hosts were, what waited for data, and what it cost: a line a run."""
    rows = [
        (
            escape(run.name),
            format_share(run.data_wait_share),
            _known(run.utilisation.get(TRAINING, Utilisation()).cpu, format_share),
            _known(run.utilisation.get(TRAINING, Utilisation()).gpu, format_share),
            _known(run.utilisation.get(AUXILIARY, Utilisation()).cpu, format_share),
            _known(run.usd_per_1k_samples, format_usd),
        )
        for run in runs
    ]
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="dim")
    table.add_column("use and cost", overflow="fold")
    for name in ("data wait", "CPU", "GPU", "auxiliary CPU", "$/1k samples"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _known(value: float | None, shown: Callable[[float], str]) -> str:
    return "-" if value is None else shown(value)


def _print_several(console: Console, runs: Sequence[ComparedRun]) -> None:
    console.print(f"[bold]{escape(fastest_sentence(runs))}[/bold]")
    phases = [name for name in PHASES if any(_is_long(run, name) for run in runs)]
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="dim")
    table.add_column("run", overflow="fold")
    for name in ("speed", "90% interval", "ms/step", "samples/s"):
        table.add_column(name, justify="right", overflow="fold")
    for run in runs:
        interval = f"{run.low:.2f} to {run.high:.2f}" if run is not runs[0] else ""
        table.add_row(
            escape(run.name), f"{run.speedup:.2f}x",
            interval if run.differs or not interval else f"[dim]noise: {interval}[/dim]",
            f"{run.step_ms:,.2f}",
            "-" if run.samples_per_s is None else f"{run.samples_per_s:,.0f}",
        )  # fmt: skip
    console.print(table)
    console.print(_phase_table(runs, phases))
    for run in runs if runs[0].settings else ():
        settings = ", ".join(f"{name} {value}" for name, value in run.settings.items())
        console.print(f"{escape(run.name)}: {escape(settings)}")


def _phase_table(runs: Sequence[ComparedRun], phases: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="dim")
    table.add_column("ms a step", overflow="fold")
    for name in phases:
        table.add_column(name.replace("_", " "), justify="right")
    for run in runs:
        spent = (f"{run.phases_ms.get(name, 0.0):,.2f}" for name in phases)
        table.add_row(escape(run.name), *spent)
    return table


def _is_long(run: ComparedRun, phase: str) -> bool:
    """Return whether a phase is worth a column: it takes a hundredth of a step."""
    return run.phases_ms.get(phase, 0.0) > 0.01 * run.step_ms


def _sentence(comparison: Comparison, after: str) -> str:
    interval = f"({comparison.low:.2f} to {comparison.high:.2f})"
    if not comparison.differ:
        return f"No difference beyond noise: {comparison.speedup:.2f}x {interval}."
    word = "faster" if comparison.speedup > 1 else "slower"
    known = comparison.before_samples_per_s and comparison.after_samples_per_s
    rate = "samples/s" if known else "steps/s"
    return f"{after} is {word}: {comparison.speedup:.2f}x the {rate} {interval}."


def _numbers(before: float, after: float) -> tuple[str, str, str]:
    return f"{before:,.2f}", f"{after:,.2f}", f"{after - before:+,.2f}"
