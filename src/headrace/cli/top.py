"""The `headrace top` verb: a live view of a run in the terminal."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headrace.cli.parameters import Run, RunsDir, find_run

_WAITS = "headrace: {} has just begun; waiting for its first records"


def top(
    run: Run = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    interval: Annotated[
        str, typer.Option(help="Time between looks at the records: 100ms to 60s.")
    ] = "1s",
    runs_dir: RunsDir = None,
) -> None:
    """Show what a run does now: its speed, phases, cores, ranks and workers, and the verdict.

    Looks at records alone, never at the job; of a run that has just begun it waits for the first.
    q leaves, p pauses.

    Example: [bold]headrace top[/bold]
    """
    from rich.console import Console

    from headrace.jobs.options import check_interval
    from headrace.records.reader import wait_for_records
    from headrace.report.top.run_watcher import RunWatcher
    from headrace.report.top.screen import print_frame, show_frames

    interval_s = check_interval(interval)
    path = find_run(run, runs_dir)
    try:
        wait_for_records(path, lambda: typer.echo(_WAITS.format(path.name), err=True))
    except KeyboardInterrupt:  # ctrl-C leaves, as it does in the view itself
        return
    watcher = RunWatcher(path)
    console = Console(highlight=False)
    if once or not sys.stdout.isatty() or console.is_dumb_terminal:
        print_frame(watcher, console)
        return
    status = show_frames(watcher, console, interval_s).status
    if status.outcome not in {"going on", "unknown"}:
        typer.echo(f"{status.name} is over. More: headrace doctor {watcher.path}")
