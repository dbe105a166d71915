"""The `headrace tune` verb: trials of remedies without a change of the script."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from headrace.cli.parameters import WITH_SCRIPT
from headrace.core.errors import UsageError

_HELP = """Run a script for some steps, apply the best remedy that edits no code, run again.

Goes on while remedies help; prints what was predicted, what was measured, and the flag that keeps
what helped. Takes torchrun's own flags before the script, as `headrace run` does.

Example: headrace tune train.py --epochs 3
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command(name="tune", help=_HELP, context_settings=WITH_SCRIPT)(_tune)


def _tune(
    context: typer.Context,
    steps: Annotated[int, typer.Option(help="Training steps of each run, the warm-up apart.")] = 50,
    apply: Annotated[
        str | None, typer.Option(help="What every run uses, as of `headrace run --apply`.")
    ] = None,
    runs_dir: Annotated[str | None, typer.Option(help="Where runs lie; ./runs by default.")] = None,
) -> None:
    from headrace.cli.tune_report import TuneReport
    from headrace.core.overrides import parse_overrides
    from headrace.jobs.tune import tune
    from headrace.records.run_folder import runs_folder

    if not context.args:
        raise UsageError("headrace tune needs a script: headrace tune [flags] script.py [args].")
    if steps < 10:
        raise UsageError(f"--steps {steps}: fewer than 10 show nothing.")
    folder = runs_folder(runs_dir) / f"tune-{time.strftime('%Y%m%d-%H%M%S')}"
    report = TuneReport()
    applied = parse_overrides(apply or "")
    for trial in tune(context.args, folder.resolve(), steps=steps, applied=applied):
        report.print_trial(trial)
    report.end(folder)
