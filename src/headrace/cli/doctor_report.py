"""A diagnosis in the terminal, readable at 80 columns."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from headrace.observe.doctor.model import Diagnosis, Fact, Finding, Remedy, Severity

_COLOURS: dict[Severity, str] = {
    "info": "green",
    "warning": "yellow",
    "serious": "dark_orange",
    "critical": "red",
}


def print_diagnosis(diagnosis: Diagnosis, console: Console | None = None) -> None:
    """Print the verdict, then each finding with its evidence, cause and remedies.

    Args:
        diagnosis: What to print.
        console: Where to; the terminal by default.
    """
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
    for gap in diagnosis.gaps:
        console.print(f"[yellow]{escape(gap)}[/yellow]")
    for number, finding in enumerate(diagnosis.findings, start=1):
        console.print()
        _print_finding(console, number, finding)
    if diagnosis.rules == "sagemaker":
        console.print()
        _print_others(console, diagnosis)


def _phases(shares: Mapping[str, float]) -> str:
    told = (
        f"{phase.replace('_', ' ')} {share:.0%}"
        for phase, share in shares.items()
        if share >= 0.005  # less would be shown as 0 %
    )
    return ", ".join(told)


def _print_others(console: Console, diagnosis: Diagnosis) -> None:
    """Print which of SageMaker Debugger's rules found nothing, and which could not say."""
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
        place = f"{cause.file}:{cause.line}" if cause.line else cause.file
        _indented(console, f"[cyan]{escape(place)}[/cyan] {what}")
    facts = ", ".join(f"{_words(name)} {_told(fact)}" for name, fact in finding.evidence.items())
    _indented(console, f"[dim]{escape(facts)}[/dim]")
    if finding.foretold and finding.remedies:
        _indented(console, "What would help such a run, times its own speed:")
    for remedy in finding.remedies:
        print_remedy(console, remedy)


def print_remedy(console: Console, remedy: Remedy) -> None:
    """Print what can be done, what it would give, and how it is done.

    Args:
        console: Where to.
        remedy: The remedy.
    """
    gain = f" [bold]{remedy.prediction}[/bold]" if remedy.prediction else ""
    _indented(console, f"-> {escape(remedy.change or remedy.name)}{gain}")
    _indented(console, escape(remedy.how), by=6)


def _indented(console: Console, text: str, by: int = 3) -> None:
    console.print(Padding(text, (0, 0, 0, by), expand=False))


def _words(name: str) -> str:
    return name.replace("_", " ")


def _told(fact: Fact) -> str:
    if fact is None:
        return "unknown"
    return f"{fact:,.3g}" if isinstance(fact, float) and abs(fact) < 1000 else f"{fact}"
