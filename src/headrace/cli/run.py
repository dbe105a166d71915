"""`headrace run`: a training script on this host's devices."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headrace.launch.job import run_job

_HELP = """Run a training script, unmodified, on this host's devices.

Takes torchrun's own flags, in all their spellings, before the script; with none of them the
script runs directly, in one process. Logs go to the run's folder. The exit code is the script's.

Example: headrace run --nproc-per-node auto train.py --epochs 3
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command(
        name="run",
        help=_HELP,
        context_settings={
            "ignore_unknown_options": True,
            "allow_extra_args": True,
            "allow_interspersed_args": False,
        },
    )(_run)


def _run(
    context: typer.Context,
    run_dir: Annotated[
        str | None, typer.Option(help="The run's folder. One that holds a run goes on with it.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Instead: runs/NAME.")] = None,
) -> None:
    own = [f"--run-dir={run_dir}"] if run_dir is not None else []
    own += [f"--name={name}"] if name is not None else []
    sys.exit(run_job([*own, *context.args]))
