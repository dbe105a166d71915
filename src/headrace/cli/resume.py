"""The `headrace resume` verb: a run's last command again, as its next attempt."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command(name="resume")(resume)


def resume(
    run: Annotated[str, typer.Argument(help="The run's name, or its folder.")],
    *,
    runs_dir: Annotated[str | None, typer.Option(help="Where runs are; ./runs by default.")] = None,
) -> None:
    """Start a run's last command again, in its folder, as the next attempt.

    It starts from the folder where it was typed. With --checkpoint-uri the newest checkpoint is
    there before the script begins.

    Example: [bold]headrace resume train-20261123-101500[/bold]
    """
    from headrace.jobs.run import resume_run

    sys.exit(resume_run(run, runs_dir))
