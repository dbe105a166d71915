"""The `headrace sweep` verb: one job in many configurations, as one experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.parameters import RunsDir

_HELP = """Run a job in many configurations, compare the runs, and write one page about them.

The job file has lists of values to combine in a table sweep.grid, or a table sweep.runs for each
run. Started again, it goes on: no run that ended well is repeated.

Example: headrace sweep strategies.toml
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command(name="sweep", help=_HELP)(_sweep)


def _sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A job file with a table sweep.")],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs and what differs; start nothing.")
    ] = False,
    runs_dir: RunsDir = None,
) -> None:
    from headrace.cli.sweep_report import SweepReport
    from headrace.jobs.sweep.sweep_file import read_sweep
    from headrace.jobs.sweep.sweep_run import check_scripts, run_sweep
    from headrace.jobs.sweep.sweep_state import SweepState
    from headrace.records.run_folder import runs_folder

    sweep = read_sweep(file)
    check_scripts(sweep)
    report = SweepReport(sweep)
    if dry_run:
        report.print_runs()
        return
    state = SweepState.open(sweep, runs_folder(runs_dir).resolve())
    report.begin(state)
    for event in run_sweep(sweep, state):
        report.print_event(event)
    report.end(state)
    if report.failed:
        raise typer.Exit(1)
