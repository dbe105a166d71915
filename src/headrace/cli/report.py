"""The `headrace report` verb: a run as one page."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.parameters import Run, RunsDir


def report(
    run: Run = None,
    *,
    runs_dir: RunsDir = None,
    output: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The page; report.html in the run's folder by default."),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write one self-contained HTML page about a run: verdict, findings, charts, facts.

    Example: [bold]headrace report --open[/bold]
    """
    from headrace.records.reader import find_run
    from headrace.report.page import write_report

    page = write_report(find_run(run, runs_dir), output=output)
    typer.echo(str(page))
    if open_it:
        typer.launch(page.as_uri())
