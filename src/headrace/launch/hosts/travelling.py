"""A job's folder, which goes with it to other hosts, and its command line as it is read there."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Luggage:
    """What goes to a host that does not share this machine.

    Attributes:
        folder: The folder whose copy the ranks stand in.
        argv: The command line, the script named from that folder on.
        scripts: The script's own folder, named from that folder on; "" where it is that one.
    """

    folder: str
    argv: tuple[str, ...]
    scripts: str = ""

    def named(self, script: str) -> str:
        """Return a script's path as it is from the folder on; a module's name stays."""
        path = Path(script).absolute()
        return str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else script


def pack_luggage(args: argparse.Namespace, argv: Sequence[str]) -> Luggage:
    """Return what goes with a job.

    Where the script lies below the current folder, that one goes, so that what the script finds
    from there is there too; otherwise the script's own folder.

    Args:
        args: The parsed flags.
        argv: What they were parsed from.
    """
    here = Path.cwd()
    # From the end: the script's own arguments may hold its name, or "--".
    place = (
        len(argv)
        - 1
        - list(reversed(argv)).index(args.typed_script, len(args.training_script_args))
    )
    before, after = argv[:place], argv[place + 1 :]
    if args.module or args.no_python:
        return Luggage(folder=str(here), argv=tuple(argv))
    script = Path(os.path.normpath(Path(args.training_script).absolute()))
    folder = here if script.is_relative_to(here) else script.parent
    name = script.relative_to(folder)
    scripts = "" if name.parent == Path() else str(name.parent)
    return Luggage(folder=str(folder), argv=(*before, str(name), *after), scripts=scripts)
