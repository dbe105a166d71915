"""A simulation of many ranks in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.core.units import format_bytes, format_usd
from headrace.decide.cost.rank_scaling import S3_REQUESTS_PER_S, RankScaling, ScaledJob


def print_scaling(scaling: RankScaling) -> None:
    """Print a row for each number of ranks, what storage must bear, and what was assumed."""
    console = Console(highlight=False)
    last = scaling.jobs[-1]
    efficiency = last.efficiency
    console.print(
        f"[bold]Simulated, not measured: {last.ranks:,} ranks would train at "
        f"{last.samples_per_s.value:,.4g} samples/s, with {efficiency.value:.0%} "
        f"({efficiency.low:.0%} to {efficiency.high:.0%}) of the speed of one alone each.[/bold]"
    )
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="dim")
    names = ["ranks", "hosts", "samples/s", "efficiency", "data ready", "wait", "stragglers",
             "sync"]  # fmt: skip
    has_price = last.usd_per_1k_samples is not None
    for name in (*names, *(["$/1k"] if has_price else [])):
        table.add_column(name, justify="right")
    for job in scaling.jobs:
        table.add_row(*_row(job, has_price=has_price))
    console.print(table)
    for line in _storage_lines(last):
        console.print(escape(line))
    console.print(
        f"[dim]From {escape(scaling.run)}, of {scaling.measured_ranks} "
        f"rank{'s' * (scaling.measured_ranks > 1)}. Data ready: samples/s where no rank waits for "
        "data.[/dim]"
    )
    for text in scaling.assumptions:
        console.print(f"[dim]Assumed: {escape(text)}[/dim]")
    if scaling.unpriced:
        console.print(f"[dim]No cost: {escape(scaling.unpriced)}.[/dim]")


def _row(job: ScaledJob, *, has_price: bool) -> list[str]:
    efficiency = job.efficiency
    cells = [
        f"{job.ranks:,}", f"{job.hosts:,}", f"{job.samples_per_s.value:,.4g}",
        f"{efficiency.value:.0%} ({100 * efficiency.low:.0f}-{100 * efficiency.high:.0f})",
        f"{job.data_ready_samples_per_s:,.4g}", f"{job.wait_share:.0%}",
        f"{job.straggler_share:.0%}", f"{job.sync_share:.0%}",
    ]  # fmt: skip
    usd = job.usd_per_1k_samples
    return [*cells, format_usd(usd or 0.0)] if has_price else cells


def _storage_lines(job: ScaledJob) -> list[str]:
    """Return what storage must bear at a number of ranks."""
    if job.read_bytes_per_s is None:
        return []
    bears = f"Storage must give {format_bytes(job.read_bytes_per_s)} a second"
    if job.is_limited_by_storage:
        bears = f"Storage is the limit: it gives {format_bytes(job.read_bytes_per_s)} a second"
    if job.reads_per_s is None:
        return [f"{bears}."]
    lines = [f"{bears}, in {job.reads_per_s:,.0f} reads."]
    if job.reads_per_s > S3_REQUESTS_PER_S:
        lines.append(
            f"Where each read is a request, that is more than the {S3_REQUESTS_PER_S:,.0f} a "
            "second that S3 answers for one prefix: shards need fewer."
        )
    return lines
