"""A sweep in the terminal: its progress, and at its end the comparison of its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.core.console import print_status
from headrace.core.errors import RecordsError
from headrace.core.units import format_seconds
from headrace.jobs.sweep.sweep_file import Sweep
from headrace.jobs.sweep.sweep_run import SweepEvent
from headrace.jobs.sweep.sweep_state import SweepState

if TYPE_CHECKING:
    from headrace.decide.experiments.compared_runs import MeasuredRun

_FEWEST_COMPARED = 2


class SweepReport:
    """The printer of a sweep."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._console = Console(highlight=False)
        self.failed: list[str] = []

    def print_runs(self) -> None:
        """Print the names of the runs, and what differs in each."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("run", overflow="fold")
        names = list(dict.fromkeys(name for run in self._sweep.runs for name in run.changes))
        for name in names:
            table.add_column(escape(name), overflow="fold")
        for run in self._sweep.runs:
            table.add_row(escape(run.name), *(escape(run.changes.get(name, "-")) for name in names))
        self._console.print(table)

    def begin(self, state: SweepState) -> None:
        """Print what there is to do."""
        done = sum(state.finished(run) is not None for run in self._sweep.runs)
        ended = f", of which {done} ended well before" if done else ""
        print_status(f"sweep {self._sweep.name}: {len(self._sweep.runs)} runs{ended}")

    def print_event(self, event: SweepEvent) -> None:
        """Print that a run starts, or how it ended."""
        run = f"{event.place}/{len(self._sweep.runs)} {event.run.name}"
        left = "" if event.left_s is None else f"; {format_seconds(event.left_s)} left"
        if event.seconds is None:
            print_status(f"{run} starts{left}")
        elif event.fault:
            self.failed.append(event.run.name)
            print_status(f"{run} failed: {event.fault}")
        else:
            print_status(f"{run} took {format_seconds(event.seconds)}{left}")

    def end(self, state: SweepState) -> None:
        """Print the comparison of all runs that can be compared, and write its page."""
        measured, notes = self._measured(state)
        if len(measured) < _FEWEST_COMPARED:
            for note in notes:
                print_status(note)
            print_status("fewer than two runs can be compared")
            return
        from headrace.cli.compare_report import print_compared_runs
        from headrace.decide.experiments.compared_runs import compare_measured
        from headrace.report.comparison_page import read_comparison_data, write_comparison

        runs = compare_measured(measured)
        print_compared_runs(runs)
        for note in notes:
            self._console.print(f"[dim]{escape(note)}[/dim]")
        page = write_comparison(read_comparison_data(runs, self._sweep.name, notes), state.folder)
        self._console.print(f"[dim]{escape(str(page))}[/dim]", soft_wrap=True)

    def _measured(self, state: SweepState) -> tuple[list[MeasuredRun], list[str]]:
        """Return the runs that can be compared, and why others cannot."""
        from headrace.decide.experiments.compared_runs import measured_run

        measured: list[MeasuredRun] = []
        notes = []
        for run in self._sweep.runs:
            if state.finished(run) is None:
                notes.append(f"{run.name} has not ended well, and is not compared.")
                continue
            try:
                folder = state.runs / run.name
                measured.append(measured_run(folder, folder.name, is_first=not measured))
            except RecordsError as error:
                notes.append(f"{run.name} is not compared: {error}")
        return measured, notes
