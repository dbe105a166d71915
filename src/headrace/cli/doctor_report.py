"""`headrace doctor` in the terminal: diagnoses, forecasts for other ranks, checked predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from headrace.cli.json_output import print_json
from headrace.core.errors import RecordsError, UsageError
from headrace.observe.doctor.evidence import gather_evidence
from headrace.observe.doctor.findings import Diagnosis, Fact, Finding, Remedy, Severity
from headrace.observe.doctor.scaling_forecast import ScalingForecast, forecast_ranks
from headrace.observe.whatif.comparison import error_summary, read_checked_predictions
from headrace.observe.whatif.prediction import Estimate, ScaledRun
from headrace.records.reader import find_run, open_records
from headrace.report.formatting import format_number

_COLOURS: dict[Severity, str] = {
    "info": "green",
    "warning": "yellow",
    "serious": "dark_orange",
    "critical": "red",
}


def print_diagnosis(diagnosis: Diagnosis, console: Console | None = None) -> None:
    """Print the verdict, then each finding with its evidence, cause and remedies."""
    console = console or Console(highlight=False)
    verdict = diagnosis.verdict
    console.print(f"[bold]{escape(verdict.sentence)}[/bold]")
    if verdict.step_ms is not None:
        steps = f"{verdict.steps:,} steps of {verdict.step_ms:,.1f} ms"
        if verdict.device_phase_shares:
            steps += ", by the script's clock"
        console.print(f"[dim]{steps}: {_phases(verdict.phase_shares)}[/dim]")
        if verdict.device_phase_shares:
            by_device = _phases(verdict.device_phase_shares)
            console.print(f"[dim]by the accelerator's own clock: {by_device}[/dim]")
    if verdict.time_shares:
        start, run = (f"{each:,.0f} s" for each in (verdict.start_seconds, verdict.run_seconds))
        shares = _phases(verdict.time_shares)
        console.print(f"[dim]{start} of start-up, then {run}: {shares}[/dim]")
    for gap in diagnosis.gaps:
        console.print(f"[yellow]{escape(gap)}[/yellow]")
    for number, finding in enumerate(diagnosis.findings, start=1):
        console.print()
        _print_finding(console, number, finding)
    if diagnosis.rules == "sagemaker":
        console.print()
        _print_quiet_rules(console, diagnosis)


def _phases(shares: Mapping[str, float]) -> str:
    return ", ".join(
        f"{phase.replace('_', ' ')} {share:.0%}"
        for phase, share in shares.items()
        if share >= 0.005  # less would be shown as 0 %
    )


def _print_quiet_rules(console: Console, diagnosis: Diagnosis) -> None:
    """Print which of SageMaker Debugger's rules found nothing, and which were not evaluated."""
    issues = sum(finding.severity != "info" for finding in diagnosis.findings)
    rules = len(diagnosis.findings) + len(diagnosis.quiet) + len(diagnosis.not_evaluated)
    console.print(f"SageMaker Debugger's rules: {issues} of {rules} found an issue.")
    if diagnosis.quiet:
        _indented(console, f"nothing found: {', '.join(diagnosis.quiet)}")
    for each in diagnosis.not_evaluated:
        _indented(console, f"[yellow]not evaluated[/yellow] {each.rule}: {escape(each.reason)}")


def _print_finding(console: Console, number: int, finding: Finding) -> None:
    colour = _COLOURS[finding.severity]
    lost = f", {finding.seconds_lost:,.1f} s lost" if finding.seconds_lost >= 0.05 else ""
    console.print(
        f"{number}. [{colour}]{finding.severity}[/{colour}] [bold]{finding.rule}[/bold]{lost}"
    )
    _indented(console, escape(finding.title))
    cause = finding.cause
    if cause is not None and cause.file:
        what = escape(cause.transform or cause.function)
        line = f"{cause.file}:{cause.line}" if cause.line else cause.file
        _indented(console, f"[cyan]{escape(line)}[/cyan] {what}")
    facts = ", ".join(
        f"{name.replace('_', ' ')} {_fact_text(fact)}" for name, fact in finding.evidence.items()
    )
    _indented(console, f"[dim]{escape(facts)}[/dim]")
    if finding.forecast and finding.remedies:
        _indented(console, "What would help such a run, times its own speed:")
    for remedy in finding.remedies:
        print_remedy(console, remedy)


def print_remedy(console: Console, remedy: Remedy) -> None:
    """Print a remedy with its predicted effect and how it is done."""
    gain = f" [bold]{remedy.prediction}[/bold]" if remedy.prediction else ""
    _indented(console, f"-> {escape(remedy.change or remedy.name)}{gain}")
    _indented(console, escape(remedy.how), by=6)


def _indented(console: Console, text: str, by: int = 3) -> None:
    console.print(Padding(text, (0, 0, 0, by), expand=False))


def _fact_text(fact: Fact) -> str:
    if fact is None:
        return "unknown"
    return format_number(fact) if isinstance(fact, float) else f"{fact}"


_NOT_COUNTED = (
    "Data wait is also that for another rank's data, which shows as gradient sync. Not counted: "
    "gradient sync itself beyond what this run had, memory bandwidth, and storage that ranks share."
)
_HIGH_SHARE = 0.25
"""From this share of the cores on, other processes distort the rank's measured times."""


def print_ranks(run: str | None, runs_dir: str | None, ranks: int, *, json: bool) -> None:
    """Print the forecast of a run, the latest if None, with another number of ranks on its host.

    Raises RecordsError where the records are not sufficient for a forecast.
    """
    if ranks < 1:
        raise UsageError(f"--ranks {ranks}: give a whole number, 1 or more.")
    found = find_run(run, runs_dir)
    forecast = forecast_ranks(gather_evidence(open_records(found)), ranks)
    if forecast is None:
        raise RecordsError(
            f"The records of {found} do not say enough to predict other ranks: that takes a "
            "DataLoader, ten training steps after the warm-up, and some seconds of samples of the "
            "cores. Let it train longer, or sample more often (--profile-interval 100ms)."
        )
    if json:
        print_json(forecast.to_json())
        return
    print_forecast(forecast, Console(highlight=False))


def print_forecast(forecast: ScalingForecast, console: Console) -> None:
    """Print a run as measured, with another number of ranks, and what would help then."""
    then = forecast.then
    console.print(
        f"[bold]At {_ranks(then.ranks)}: {_rate(forecast, then)}, scaling efficiency "
        f"{_percent(then.efficiency)}, data wait {_percent(then.wait_share)}.[/bold]"
    )
    console.print(
        f"Measured at {_ranks(forecast.now.ranks)}: "
        f"{_rate(forecast, forecast.now, interval=False)}, "
        f"data wait {forecast.now.wait_share.value:.0%}."
    )
    console.print(
        f"[dim]A batch takes {forecast.cpu_ms_a_batch:,.1f} ms of CPU; the host has "
        f"{forecast.cores:g} cores. {_NOT_COUNTED}[/dim]"
    )
    if forecast.spins:
        factor = then.spin_factor
        console.print(
            "[yellow]The workers' threads will outnumber the cores, and may spin while they wait "
            f"for each other: {factor.value:.1f} ({factor.low:.0f} to {factor.high:.0f}) times the "
            "CPU for a batch.[/yellow]"
        )
    if forecast.foreign_cores >= _HIGH_SHARE * forecast.cores:
        console.print(
            f"[yellow]Other processes used {forecast.foreign_cores:.1f} of the cores meanwhile, "
            "which changed what was measured: repeat the run without them to rely on this.[/yellow]"
        )
    if forecast.remedies:
        console.print(f"\nWhat would help at {_ranks(then.ranks)}:")
    for remedy in forecast.remedies:
        print_remedy(console, remedy)


def _ranks(count: int) -> str:
    return f"{count} rank{'' if count == 1 else 's'}"


def _rate(forecast: ScalingForecast, scale: ScaledRun, *, interval: bool = True) -> str:
    samples = forecast.samples_per_s(scale)
    rate, unit = (scale.batches_per_s, "batches") if samples is None else (samples, "samples")
    between = f" ({_number(rate.low)} to {_number(rate.high)})" if interval else ""
    return f"{_number(rate.value)} {unit}/s{between}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(estimate: Estimate) -> str:
    return f"{estimate.value:.0%} ({estimate.low:.0%} to {estimate.high:.0%})"


def print_backtest(runs: Path, *, json: bool) -> None:
    """Print every checked prediction in the runs folder, and the errors over all of them."""
    checked = read_checked_predictions(runs)
    if not checked:
        raise RecordsError(f"No prediction was checked in {runs} yet. `headrace tune` checks some.")
    summary = error_summary(list(checked.values()))
    if json:
        rows = [
            {"run": str(run), **asdict(each), "error": each.error, "held": each.held}
            for run, each in checked.items()
        ]
        print_json({"errors": dict(summary), "checked": rows})
        return
    console = Console(highlight=False)
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
        f"[bold]{len(checked)} checked: error {summary['median']:.0%} in the median, "
        f"{summary['worst']:.0%} at worst; {summary['held']:.0%} within their ranges[/bold]"
    )
