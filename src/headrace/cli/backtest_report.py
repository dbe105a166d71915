"""Checked predictions in the terminal, or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headrace.cli.data_report import print_json
from headrace.core.errors import RecordsError
from headrace.observe.whatif.backtest import errors, read_checked


def tell_backtest(runs: Path, *, json: bool, console: Console | None = None) -> None:
    """Print every prediction that was checked below a folder, and the errors over all of them.

    Raises:
        RecordsError: None was checked yet.
    """
    checked = read_checked(runs)
    if not checked:
        raise RecordsError(f"No prediction was checked in {runs} yet. `headrace tune` checks some.")
    over_all = errors(list(checked.values()))
    if json:
        rows = [
            {"run": str(run), **asdict(each), "error": each.error, "held": each.held}
            for run, each in checked.items()
        ]
        print_json({"errors": dict(over_all), "checked": rows})
        return
    console = console or Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("change", "predicted", "measured", "error"):
        table.add_column(column, justify="left" if column == "change" else "right")
    for each in checked.values():
        table.add_row(
            each.change,
            f"{each.predicted:.2f}x ({each.low:.2f} to {each.high:.2f})",
            f"{each.measured:.2f}x ({each.measured_low:.2f} to {each.measured_high:.2f})",
            f"{each.error:+.0%}",
        )
    console.print(table)
    console.print(
        f"[bold]{len(checked)} checked: error {over_all['median']:.0%} in the median, "
        f"{over_all['worst']:.0%} at worst; intervals met in {over_all['held']:.0%}[/bold]"
    )
