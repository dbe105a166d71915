"""The parameters and settings that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="A run's name or folder; the latest by default."),
]
RunsDir = Annotated[str | None, typer.Option(help="Where runs are; ./runs by default.")]
WITH_SCRIPT = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,
}
"""The settings of a verb that is followed by a script, with torchrun's flags and the script's."""


def find_run(run: str | None, runs_dir: str | None) -> Path:
    """Return the folder of the run that `Run` and `RunsDir` name; see `records.reader.find_run`."""
    from headrace.records import reader  # which imports Arrow

    return reader.find_run(run, runs_dir)
