"""A job's folder, which goes with it to other hosts, and its command line as it is read there."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Luggage:
    """What goes to a host that does not share this machine.

    Attributes:
        folder: The folder whose copy the ranks stand in.
        argv: The command line, the script named from that folder on.
    """

    folder: str
    argv: tuple[str, ...]


def pack_luggage(args: argparse.Namespace, argv: Sequence[str]) -> Luggage:
    """Return what goes with a job.

    Where the script lies below the current folder, that one goes, so that what the script finds
    from there is there too; otherwise the script's own folder.

    Args:
        args: The parsed flags.
        argv: What they were parsed from.
    """
    here = Path.cwd()
    before = argv[: len(argv) - len(args.training_script_args) - 1]
    if args.module or args.no_python:
        return Luggage(folder=str(here), argv=tuple(argv))
    script = Path(args.training_script).absolute()
    folder = here if script.is_relative_to(here) else script.parent
    name = str(script.relative_to(folder))
    return Luggage(folder=str(folder), argv=(*before, name, *args.training_script_args))
