"""The help of `headrace run`, which cli/main.py executes, and the `headrace resume` verb."""

from __future__ import annotations

import inspect
import sys
from typing import Annotated, Any, get_args

import typer

from headrace.cli.parameters import WITH_SCRIPT, RunsDir
from headrace.core.errors import UsageError
from headrace.jobs.options import Panel
from headrace.jobs.spec import job_options

_HELP = """Run a training script, unmodified, on this host's devices.

Takes torchrun's own flags, in all their spellings, before the script; with none of them the
script runs directly, in one process. Logs go to the run's folder. The exit code is the script's.
With --engine ray, torchrun runs on every host of an instance group of a Ray cluster. In place of
the script, a job file (.toml, .yaml) has the arguments of headrace.Estimator.

Example: headrace run --nproc-per-node auto train.py --epochs 3
"""


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.command(name="run", help=_HELP, context_settings=WITH_SCRIPT)(_run)
    app.command(name="resume")(resume)


def _run(**_: Any) -> None:
    raise UsageError("For the help of headrace run, put --help right after it.")


def _signature() -> inspect.Signature:
    """Return the signature of `_run` with all options of a job, from which typer makes the help."""
    parameters = []
    panels = {panel: number for number, panel in enumerate(get_args(Panel))}
    for each in sorted(job_options().values(), key=lambda option: panels[option.panel]):
        kind: Any = (
            bool if each.kind.is_switch else list[str] | None if each.kind.repeats else str | None
        )
        shown = typer.Option(each.flag, rich_help_panel=each.panel, help=each.help)
        default = False if each.kind.is_switch else None
        annotation = Annotated[kind, shown]
        parameters.append(
            inspect.Parameter(each.name, _KEYWORD, default=default, annotation=annotation)
        )
    return inspect.Signature(parameters)


_KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD
_run.__signature__ = _signature()  # type: ignore[attr-defined]
_run.__annotations__ = {name: each.annotation for name, each in _signature().parameters.items()}


def resume(
    run: Annotated[str, typer.Argument(help="The run's name, or its folder.")],
    *,
    runs_dir: RunsDir = None,
) -> None:
    """Start a run's last command again, in its folder, as the next attempt.

    It starts from the folder where it was typed. With --checkpoint-uri the newest checkpoint is
    there before the script begins.

    Example: [bold]headrace resume train-20261123-101500[/bold]
    """
    from headrace.jobs.run import resume_run

    sys.exit(resume_run(run, runs_dir))
