"""The script that is to be run: whether it can be."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from headrace.core.errors import UsageError

_JOB_FILES = {".toml", ".yaml", ".yml"}


def check_script(script: str, *, runs_itself: bool = False) -> None:
    """Raise UsageError, with the remedy, where `script` cannot be run.

    Args:
        script: The path as it was typed.
        runs_itself: It is started as a program of its own, not by Python.
    """
    path = Path(script)
    if path.suffix in _JOB_FILES and not runs_itself:
        raise UsageError(
            f"{script} is a job file, and flags of torchrun's stand before it. Say in it how many "
            "ranks there are: instance_count, distribution."
        )
    if runs_itself:
        if path.exists() and not os.access(path, os.X_OK):
            raise UsageError(f"{script} may not be executed. Run `chmod +x {script}`.")
        return  # a bare name is looked up on PATH when it starts
    if not path.exists():
        raise UsageError(f"There is no script {script} in {Path.cwd()}.{_nearest(path)}")
    if path.is_dir() and not (path / "__main__.py").exists():
        raise UsageError(
            f"{script} is a folder without a __main__.py. Name the script, or a module with -m."
        )
    if not os.access(path, os.R_OK):
        raise UsageError(f"{script} may not be read. Run `chmod +r {script}`.")


def find_script(script: str, source_dir: str | None) -> str:
    """Return a script's path: from the folder of the code on, where it is there.

    Args:
        script: As it was typed.
        source_dir: The folder of the code; None: none is named.

    Raises:
        UsageError: There is no such folder.
    """
    if source_dir is None:
        return script
    if not Path(source_dir).is_dir():
        raise UsageError(f"--source-dir {source_dir}: there is no such folder in {Path.cwd()}.")
    inside = Path(source_dir) / script
    return str(inside) if inside.exists() or not Path(script).exists() else script


def _nearest(path: Path) -> str:
    neighbours = [entry.name for entry in path.parent.glob("*.py")]
    close = difflib.get_close_matches(path.name, neighbours, n=1)
    return f" Did you mean {path.parent / close[0]}?" if close else ""
