"""The `headrace compare` verb: what changed between two runs, and by how much."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.parameters import RunsDir


def compare(
    before: Annotated[str, typer.Argument(help="A run's name or folder.")],
    after: Annotated[str, typer.Argument(help="The run to compare it with.")],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
    runs_dir: RunsDir = None,
) -> None:
    """Say whether a run is faster than another, in which phases, and beyond noise or not.

    Example: [bold]headrace compare base with-8-workers[/bold]
    """
    from headrace.observe.whatif.comparison import compare as compare_runs
    from headrace.records.reader import find_run, open_records, run_provenance

    found = [find_run(run, runs_dir) for run in (before, after)]
    records = [open_records(run) for run in found]
    comparison = compare_runs(*records, made_with=[run_provenance(each) for each in records])
    if json:
        from headrace.cli.data_report import print_json

        print_json(comparison.to_json())
        return
    from headrace.cli.compare_report import print_comparison

    print_comparison(comparison, found[0].name, found[1].name)
