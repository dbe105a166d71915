"""The trials of a tuning in the terminal, run by run."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from headrace.jobs.tune import FailedTrial, Trial


class TuneReport:
    """The printer of a tuning's runs as they end, and of the flag to keep at last."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._first: Trial | None = None
        self._best: Trial | None = None

    def print_trial(self, trial: Trial | FailedTrial) -> None:
        """Print one run."""
        if isinstance(trial, FailedTrial):
            self._print_failure(trial)
            return
        step_ms = trial.diagnosis.verdict.step_ms or 0.0
        if trial.remedy is None or trial.measured is None:
            self._first = self._best = trial
            self._console.print(f"as it is: {step_ms:,.1f} ms a step")
            self._console.print(f"  [dim]{escape(trial.diagnosis.verdict.sentence)}[/dim]")
            return
        applied = ", ".join(map(str, trial.remedy.overrides))
        measured = trial.measured
        self._console.print(f"{escape(applied)}: {step_ms:,.1f} ms a step")
        self._console.print(
            f"  predicted {trial.remedy.prediction}, measured [bold]{measured.speedup:.2f}x[/bold] "
            f"({measured.low:.2f} to {measured.high:.2f})"
        )
        if trial.helped:
            self._best = trial

    def _print_failure(self, trial: FailedTrial) -> None:
        applied = ", ".join(map(str, trial.remedy.overrides))
        self._console.print(f"{escape(applied)}: [red]the script failed with it[/red]; left out")
        self._console.print(f"  [dim]{escape(trial.reason)}[/dim]")

    def end(self, folder: Path) -> None:
        """Print the flag to keep, and the tuning's folder, where the runs are."""
        best, first = self._best, self._first
        if best is not None and best is first:
            self._console.print("[bold]Nothing that needs no code change makes it faster.[/bold]")
        elif best is not None and first is not None:
            before = first.diagnosis.verdict.step_ms or 0.0
            speedup = before / (best.diagnosis.verdict.step_ms or 1.0)
            flag = escape(",".join(map(str, best.overrides)))
            self._console.print(
                f"[bold]{speedup:.2f}x as fast with: headrace run --apply {flag}[/bold]"
            )
        self._console.print(f"[dim]its runs: {escape(str(folder))}[/dim]", soft_wrap=True)
