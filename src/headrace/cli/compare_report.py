"""The comparison of two runs in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.observe.whatif.comparison import Comparison


def print_comparison(comparison: Comparison, before: str, after: str) -> None:
    """Print what changed from the run named `before` to the one named `after`, phase by phase."""
    console = Console(highlight=False)
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
