"""Advice on hosts in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.core.units import format_usd
from headrace.decide.cost.advice import Advice
from headrace.decide.cost.predicted_mixes import PredictedMix


def print_advice(advice: Advice) -> None:
    """Print the recommendation, and the mixes that are worth a look."""
    console = Console(highlight=False)
    console.print(f"[bold]{escape(advice.reason)}[/bold]")
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="dim")
    table.add_column("hosts", overflow="fold")
    for name in ("$/h", "samples/s", "90% interval", "wait", "$/1k samples"):
        table.add_column(name, justify="right", overflow="fold")
    for mix in advice.shown:
        table.add_row(*_row(mix, advice))
    console.print(table)
    front = "* none is both faster and cheaper by sample, without a change of the script"
    console.print(f"[dim]{front}, of {len(advice.mixes)} that were compared[/dim]")
    if advice.left_out:
        console.print(f"[dim]{escape(advice.left_out)}[/dim]")
    for text in dict.fromkeys(text for mix in advice.shown for text in mix.assumptions):
        console.print(f"[dim]Assumed: {escape(text)}[/dim]")


def _row(mix: PredictedMix, advice: Advice) -> tuple[str, ...]:
    mark = "*" if mix in advice.front else " "
    name = f"{mark} {escape(mix.name)}"
    rate, cost = mix.samples_per_s, mix.usd_per_1k_samples
    return (
        f"[bold]{name}[/bold]" if mix is advice.recommended else name,
        f"{mix.mix.usd_per_hour:.3f}", f"{rate.value:,.4g}", f"{rate.low:,.3g} to {rate.high:,.3g}",
        "-" if mix.wait_share is None else f"{mix.wait_share:.0%}", format_usd(cost.value),
    )  # fmt: skip
