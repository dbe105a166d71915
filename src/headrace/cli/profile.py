"""The `headrace profile` verb: changes of how a running job is recorded, from another terminal."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headrace.cli.parameters import Run, RunsDir, find_run
from headrace.core.errors import UsageError


def profile(
    run: Run = None,
    *,
    deep: Annotated[
        str | None, typer.Option(help="Look closer for so long (20s, 2min), and trace a few steps.")
    ] = None,
    interval: Annotated[
        str | None, typer.Option(help="Time between samples of the system: 100ms to 60s.")
    ] = None,
    on: Annotated[
        bool | None, typer.Option("--on/--off", help="Record from now on, or record no more.")
    ] = None,
    runs_dir: RunsDir = None,
) -> None:
    """Change how a running job is recorded; without a flag, say how it is.

    Example: [bold]headrace profile --deep 20s[/bold]
    """
    from headrace.core.units import parse_seconds
    from headrace.jobs.options import check_interval
    from headrace.records.running_switch import running_switch

    found = find_run(run, runs_dir)
    deep_s = None if deep is None else parse_seconds(deep)
    if deep_s is not None and on is False:
        raise UsageError("--deep and --off exclude each other.")
    interval_s = None if interval is None else check_interval(interval)
    switch = running_switch(found)
    if on is not None:
        switch.on = on
    if interval_s is not None:
        switch.interval_s = interval_s
    if deep_s is not None:
        switch.on = True
        switch.go_deep(deep_s)
    mode = "deep" if switch.deep else "on" if switch.on else "off"
    sys.stdout.write(f"{found.name}: {mode}, system every {switch.interval_s:g} s\n")
