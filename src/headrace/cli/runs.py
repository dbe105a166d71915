"""The `headrace runs` verbs: list the runs that MLflow has, show one, export all, send later."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.json_output import print_json
from headrace.cli.parameters import RunsDir
from headrace.core.errors import UsageError

_LS_HELP = """List the runs of all experiments, the latest first.

Example: headrace runs ls --experiment resnet
"""
_SHOW_HELP = """Show the parameters, metrics and verdict of a run.

Example: headrace runs show base
"""
_EXPORT_HELP = """Write runs to a CSV or Parquet file, a row each.

Example: headrace runs export --csv runs.csv --experiment resnet
"""
_SYNC_HELP = """Send what MLflow did not get while runs went on.

Example: headrace runs sync
"""
_URI_HELP = "MLflow's tracking URI; by default that of jobs, else mlflow.db of the runs."
Experiment = Annotated[str | None, typer.Option(help="Only runs of this experiment.")]
TrackingUri = Annotated[str | None, typer.Option(metavar="URI", help=_URI_HELP)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(
        no_args_is_help=True,
        help="The runs that MLflow has: list, show, export, send later.",
        rich_markup_mode="rich",
    )
    group.callback()(lambda: None)
    group.command(name="ls", help=_LS_HELP)(_ls)
    group.command(name="show", help=_SHOW_HELP)(_show)
    group.command(name="export", help=_EXPORT_HELP)(_export)
    group.command(name="sync", help=_SYNC_HELP)(_sync)
    app.add_typer(group, name="runs")


def _ls(
    *,
    experiment: Experiment = None,
    tracking_uri: TrackingUri = None,
    json: Json = False,
    runs_dir: RunsDir = None,
) -> None:
    from headrace.decide.experiments.data_frames import tracked_runs

    runs = tracked_runs(_uri(tracking_uri, runs_dir), experiment)
    if json:
        print_json({"runs": [run.to_json() for run in runs]})
        return
    from headrace.cli.runs_report import print_runs

    print_runs(runs, experiment)
    _print_unsent(runs_dir)


def _show(
    run: Annotated[str, typer.Argument(help="A run's name; of several the latest.")],
    *,
    experiment: Experiment = None,
    tracking_uri: TrackingUri = None,
    json: Json = False,
    runs_dir: RunsDir = None,
) -> None:
    from headrace.decide.experiments.data_frames import TrackedRun

    found = TrackedRun.named(_uri(tracking_uri, runs_dir), experiment, run)
    if json:
        print_json(found.to_json())
        return
    from headrace.cli.runs_report import print_run

    print_run(found)


def _export(
    *,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="A CSV file to write.")] = None,
    parquet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A Parquet file to write.")
    ] = None,
    experiment: Experiment = None,
    tracking_uri: TrackingUri = None,
    runs_dir: RunsDir = None,
) -> None:
    from headrace.decide.experiments.data_frames import export_runs

    if csv is None and parquet is None:
        raise UsageError("headrace runs export: give --csv FILE, --parquet FILE or both.")
    frame = export_runs(_uri(tracking_uri, runs_dir), experiment, csv=csv, parquet=parquet)
    for file in filter(None, (csv, parquet)):
        typer.echo(f"{file}: {len(frame)} runs, {len(frame.columns)} columns")


def _sync(*, runs_dir: RunsDir = None) -> None:
    from headrace.decide.experiments.sync import sync_runs, tracked_folders

    folder = _folder(runs_dir)
    found = sync_runs(folder)
    for run in found:
        typer.echo(f"{run.name}: {'sent' if run.sent else run.fault}")
    if not found:
        is_sent = "MLflow has all runs already."
        typer.echo(is_sent if tracked_folders(folder) else f"No run in {folder} is tracked.")
    if not all(run.sent for run in found):
        raise typer.Exit(1)


def _uri(given: str | None, runs_dir: str | None) -> str:
    from headrace.decide.experiments.run_target import tracking_uri

    return tracking_uri(_folder(runs_dir), given)


def _folder(runs_dir: str | None) -> Path:
    from headrace.records.run_folder import runs_folder

    return runs_folder(runs_dir)


def _print_unsent(runs_dir: str | None) -> None:
    from headrace.core.console import print_status
    from headrace.decide.experiments.sync import unsent_runs

    unsent = unsent_runs(_folder(runs_dir))
    if unsent:
        names = ", ".join(each.name for each in unsent)
        print_status(f"MLflow does not have all of {names} yet; `headrace runs sync` sends it.")
