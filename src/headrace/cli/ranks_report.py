"""A run foretold for another number of ranks, in the terminal or as JSON."""

from __future__ import annotations

from rich.console import Console

from headrace.cli.data_report import print_json
from headrace.cli.doctor_report import print_remedy
from headrace.core.errors import RecordsError, UsageError
from headrace.observe.doctor.evidence import gather
from headrace.observe.doctor.foretelling import Foretelling, foretell
from headrace.observe.whatif.scaling import Estimate, Scaled
from headrace.records.reading import find_run, open_records

_NOT_COUNTED = (
    "Data wait is also that for another rank's data, which shows as gradient sync. Not counted: "
    "gradient sync itself beyond what this run had, memory bandwidth, and storage that ranks share."
)
_MUCH = 0.25
"""Others that use this share of the cores make the rank's own times what they are."""


def tell_ranks(
    run: str | None,
    runs_dir: str | None,
    ranks: int,
    *,
    json: bool,
    console: Console | None = None,
) -> None:
    """Print what a run would be with so many ranks on its host.

    Args:
        run: The run's name or folder; None for the latest.
        runs_dir: Where runs are, if told.
        ranks: Ranks on the host.
        json: Print JSON.
        console: Where to; the terminal by default.

    Raises:
        UsageError: There is no such run, or no such number of ranks.
        RecordsError: The run's records do not say enough.
    """
    if ranks < 1:
        raise UsageError(f"--ranks {ranks}: give a whole number, 1 or more.")
    found = find_run(run, runs_dir)
    told = foretell(gather(open_records(found)), ranks)
    if told is None:
        raise RecordsError(
            f"The records of {found} do not say enough to foretell other ranks: that takes a "
            "DataLoader, ten training steps after the warm-up, and some seconds in which cores "
            "were looked at. Let it train longer, or look more often (--profile-interval 100ms)."
        )
    if json:
        print_json(told.to_json())
        return
    print_foretelling(told, console or Console(highlight=False))


def print_foretelling(told: Foretelling, console: Console) -> None:
    """Print how a run was, how it would be with other ranks, and what would help then.

    Args:
        told: What is foretold.
        console: Where to.
    """
    then = told.then
    console.print(
        f"[bold]At {_ranks(then.ranks)}: {_rate(told, then)}, "
        f"scaling efficiency {_percent(then.efficiency)}, "
        f"data wait {_percent(then.wait_share)}.[/bold]"
    )
    console.print(
        f"Measured at {_ranks(told.now.ranks)}: {_rate(told, told.now, interval=False)}, "
        f"data wait {told.now.wait_share.value:.0%}."
    )
    console.print(
        f"[dim]A batch takes {told.cpu_ms_a_batch:,.1f} ms of CPU; the host has "
        f"{told.cores:g} cores. {_NOT_COUNTED}[/dim]"
    )
    if told.spins:
        factor = then.spin_factor
        console.print(
            "[yellow]The workers' threads will outnumber the cores, and may spin while they wait "
            f"for each other: {factor.value:.1f} ({factor.low:.0f} to {factor.high:.0f}) times the "
            "CPU for a batch.[/yellow]"
        )
    if told.foreign_cores >= _MUCH * told.cores:
        console.print(
            f"[yellow]Other processes used {told.foreign_cores:.1f} of the cores meanwhile, which "
            "changed what was measured: repeat the run without them to rely on this.[/yellow]"
        )
    if told.remedies:
        console.print(f"\nWhat would help at {_ranks(then.ranks)}:")
    for remedy in told.remedies:
        print_remedy(console, remedy)


def _ranks(count: int) -> str:
    return f"{count} rank{'' if count == 1 else 's'}"


def _rate(told: Foretelling, scale: Scaled, *, interval: bool = True) -> str:
    samples = told.samples_per_s(scale)
    rate, unit = (scale.batches_per_s, "batches") if samples is None else (samples, "samples")
    between = f" ({_number(rate.low)} to {_number(rate.high)})" if interval else ""
    return f"{_number(rate.value)} {unit}/s{between}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(estimate: Estimate) -> str:
    return f"{estimate.value:.0%} ({estimate.low:.0%} to {estimate.high:.0%})"
