"""The `headrace compare` verb: what changed between runs, and by how much."""

from __future__ import annotations

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

    compared = compared_runs([find_run(run, runs_dir) for run in runs])
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
