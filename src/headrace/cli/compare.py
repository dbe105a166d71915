"""The `headrace compare` verb: what changed between runs, and by how much."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.json_output import print_json
from headrace.cli.parameters import RunsDir, find_run
from headrace.core.errors import UsageError


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN RUN...", help="Names or folders; the first is compared with."),
    ],
    *,
    html: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write a page: curves, phases, utilisation and cost."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
    runs_dir: RunsDir = None,
) -> None:
    """Say whether runs are faster than the first, in which phases, and beyond noise or not.

    Example: [bold]headrace compare base with-8-workers[/bold]
    """
    if len(runs) < 2:
        raise UsageError(f"headrace compare {runs[0]}: name the run to compare it with, too.")
    from headrace.decide.experiments.compared_runs import compared_runs

    compared = compared_runs([_recorded_run(run, runs_dir) for run in runs])
    if html is not None:
        from headrace.report.comparison_page import read_comparison_data, write_comparison

        name = " · ".join(run.name for run in compared[:3]) + (" ..." if len(runs) > 3 else "")
        typer.echo(str(write_comparison(read_comparison_data(compared, name), html)))
        return
    if json:
        # Of two runs also the phases' intervals.
        pair = compared[1].comparison if len(compared) == 2 else None
        more = {} if pair is None else pair.to_json()
        print_json({**more, "runs": [run.to_json() for run in compared]})
        return
    from headrace.cli.compare_report import print_compared_runs

    print_compared_runs(compared)


def _recorded_run(name: str, runs_dir: str | None) -> Path:
    """Return a run's folder; raises UsageError, also where it is one of logged metrics alone."""
    from headrace.decide.experiments.logged_params import is_logged_to
    from headrace.records.reader import is_run
    from headrace.records.run_folder import runs_folder

    folder = runs_folder(runs_dir) / name
    if is_logged_to(folder) and not is_run(folder):
        raise UsageError(
            f"{name} is a run of experiments.start_run: its script was not started by `headrace "
            f"run`, so no steps are recorded that could be compared. headrace runs export "
            "has its params and metrics, with those of the other runs."
        )
    return find_run(name, runs_dir)
