"""The `headrace compare` verb: what changed between runs, and by how much."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.parameters import RunsDir
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
    from headrace.records.reader import find_run

    found = [find_run(run, runs_dir) for run in runs]
    if html is not None:
        typer.echo(str(_write_page(found, html)))
        return
    if len(found) == 2:
        _compare_two(*found, json=json)
    else:
        _compare_several(found, json=json)


def _write_page(found: list[Path], output: str) -> Path:
    from headrace.decide.experiments.compared_runs import compared_runs
    from headrace.report.comparison_page import read_comparison_data, write_comparison

    name = " · ".join(run.name for run in found[:3]) + (" ..." if len(found) > 3 else "")
    return write_comparison(read_comparison_data(compared_runs(found), name), output)


def _compare_two(before: Path, after: Path, *, json: bool) -> None:
    from headrace.observe.whatif.comparison import compare as compare_runs
    from headrace.records.reader import open_records, run_provenance

    records = [open_records(run) for run in (before, after)]
    comparison = compare_runs(*records, made_with=[run_provenance(each) for each in records])
    if json:
        from headrace.cli.data_report import print_json

        print_json(comparison.to_json())
        return
    from headrace.cli.compare_report import print_comparison

    print_comparison(comparison, before.name, after.name)


def _compare_several(found: list[Path], *, json: bool) -> None:
    from headrace.decide.experiments.compared_runs import compared_runs

    runs = compared_runs(found)
    if json:
        from headrace.cli.data_report import print_json

        print_json({"runs": [run.to_json() for run in runs]})
        return
    from headrace.cli.compare_report import print_compared_runs

    print_compared_runs(runs)
