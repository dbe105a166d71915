"""What a run cost, and lists of prices, in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.core.console import print_status
from headrace.core.units import format_seconds, format_usd
from headrace.decide.cost.price_catalogue import Price
from headrace.decide.cost.run_cost import GroupCost, RunCost

_NO_DAY = "undated"


def print_run_cost(cost: RunCost) -> None:
    """Print a run's dollars by group, what they went to, and those of 1,000 samples."""
    console = Console(highlight=False)
    console.print(f"[bold]{escape(cost.sentence)}[/bold]")
    table = _table("group", "hosts", "type", "$/h each", "$", "CPU", "GPU")
    for group in cost.groups:
        table.add_row(
            escape(group.name), f"{group.hosts}", escape(group.instance_type) or "-",
            f"{group.usd_per_hour:.3f}", format_usd(group.usd),
            _percent(group.cpu_utilisation), _percent(group.gpu_utilisation),
        )  # fmt: skip
    console.print(table)
    for line in _lines(cost):
        console.print(line)
    for group in cost.groups:
        if group.price is not None:
            console.print(f"[dim]{escape(_origin(group, group.price))}[/dim]")


def _lines(cost: RunCost) -> list[str]:
    attempts = "1 attempt" if cost.attempts == 1 else f"{cost.attempts} attempts"
    lines = [f"{attempts}, {format_seconds(cost.seconds)}"]
    if cost.failed_attempts:
        lines.append(f"failed attempts ({cost.failed_attempts}): ${format_usd(cost.failed_usd)}")
    if cost.usd_per_1k_samples is None:
        lines.append("how many samples it took is not recorded")
    else:
        rate = "" if cost.samples_per_s is None else f"{cost.samples_per_s:,.1f} a second"
        lines.append(
            f"{cost.samples:,} samples, {rate or 'in no known time'} with start-up: "
            f"${format_usd(cost.usd_per_1k_samples)} per 1,000"
        )
    if cost.usd_per_epoch is not None:
        lines.append(f"{cost.epochs:.3g} epochs: ${format_usd(cost.usd_per_epoch)} each")
    return lines


def _origin(group: GroupCost, price: Price) -> str:
    """Return where the price of a group's hosts is from."""
    day = price.day.isoformat() if price.day else _NO_DAY
    where = f" in {price.region}" if price.region else ""
    return f"{group.name}: {price.instance_type}{where}, {day}, {price.source or price.catalogue}"


def print_prices(prices: Sequence[Price], old: Sequence[Price], days: int) -> None:
    """Print prices with their sources, and a warning of those that are older than so many days."""
    console = Console(highlight=False)
    sources = list(dict.fromkeys(price.source or price.catalogue for price in prices))
    table = _table("type", "region", "$/h", "spot", "cores", "GiB", "devices", "date", "source")
    for price in prices:
        devices = f"{_number(price.accelerators or None)} {price.accelerator}".strip()
        spot = price.spot_usd_per_hour
        table.add_row(
            escape(price.instance_type), escape(price.region), f"{price.usd_per_hour:.3f}",
            "" if spot is None else f"{spot:.3f}", _number(price.cores), _number(price.memory_gib),
            escape(devices), price.day.isoformat() if price.day else _NO_DAY,
            f"({sources.index(price.source or price.catalogue) + 1})",
        )  # fmt: skip
    console.print(table)
    for number, source in enumerate(sources, start=1):
        console.print(f"[dim]({number}) {escape(source)}[/dim]")
    if old:
        dated = [price.day for price in old if price.day is not None]
        oldest = f"; the oldest is of {min(dated)}" if dated else ""
        print_status(
            f"{len(old)} of {len(prices)} prices are older than {days} days, or undated{oldest}. "
            "Give newer ones in a file that HEADRACE_PRICES names"
        )


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    texts = {"group", "type", "region", "devices", "source", "date"}
    for name in names:
        table.add_column(name, justify="left" if name in texts else "right", overflow="fold")
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
