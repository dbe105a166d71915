"""The `headrace report` verb: a run as one page, written to a file or served live."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from headrace.cli.parameters import Run, RunsDir, find_run
from headrace.core.errors import UsageError

_BIND = "With --live: the address to listen on, to be seen from other machines."


def report(
    run: Run = None,
    *,
    runs_dir: RunsDir = None,
    output: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The page; report.html in the run's folder by default."),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Serve all runs, as they go on, until ctrl-C.")
    ] = False,
    bind: Annotated[str, typer.Option(metavar="ADDRESS", help=_BIND)] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="With --live: the port; the next free one if in use."),
    ] = 8600,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With --live: a further name of this host in the URL."),
    ] = None,
) -> None:
    """Write one self-contained HTML page about a run: verdict, findings, charts, facts.

    With --live the page is served and follows the run; without a run it has a
    list of all.

    Example: [bold]headrace report --live[/bold]
    """
    if live:
        if output is not None:
            raise UsageError("--output writes a file and --live serves the page: give one of them.")
        _serve(run, runs_dir, bind, port, allow_host or [], open_it=open_it)
        return
    from headrace.report.page import write_report

    page = write_report(find_run(run, runs_dir), output=output)
    typer.echo(str(page))
    if open_it:
        typer.launch(page.as_uri())


def _serve(
    run: str | None, runs_dir: str | None, bind: str, port: int, names: list[str], *, open_it: bool
) -> None:
    from headrace.core.free_memory import hold_little_memory

    hold_little_memory()  # before anything imports Arrow
    from headrace.jobs.run_control import resume_in_background, stop_run
    from headrace.report.live.app import RunActions
    from headrace.report.live.run_folders import find_folders
    from headrace.report.live.server import serve

    folders, name = find_folders(run, runs_dir)

    with ExitStack() as until_end:

        def print_url(url: str, taken: int) -> None:
            if port not in {0, taken}:
                typer.echo(f"Port {port} is in use; {taken} is free and taken.", err=True)
            typer.echo(f"Headrace shows {folders.folder} at {url}  (ctrl-C ends it)")
            if open_it:
                _launch_privately(url, until_end)

        serve(
            folders,
            RunActions(stop=stop_run, resume=resume_in_background),
            address=bind,
            port=port,
            names=[each.lower() for each in names],
            run=name,
            ready=print_url,
        )


def _launch_privately(url: str, until_end: ExitStack) -> None:
    """Open a URL in the browser without its token among arguments, which all users can see."""
    from headrace.core.scratch_folder import ScratchFolder
    from headrace.report.live.guard import moving_page

    file = until_end.enter_context(ScratchFolder("headrace-open-")) / "open.html"
    file.write_text(moving_page(url), encoding="utf-8")
    typer.launch(file.as_uri())
