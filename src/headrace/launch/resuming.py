"""Starting a run's last command again, as the run's next attempt."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.core.nearest import did_you_mean
from headrace.launch.job import run_job
from headrace.launch.told import tell
from headrace.records.redaction import HIDDEN
from headrace.records.run_folder import Attempt, RunFolder, runs_folder


def resume_run(run: str, runs_dir: str | None = None) -> int:
    """Run a run's last command again, from the folder where it was typed; return the exit code.

    Args:
        run: The run's name, or its folder.
        runs_dir: Where runs lie; see `runs_folder`.

    Raises:
        UsageError: There is no such run, it is running, or its command cannot be repeated as it
            was written down.
        LaunchError: The run's folder is broken.
    """
    path = _find(run, runs_dir)
    attempts = RunFolder(path).attempts()
    if not attempts:
        raise UsageError(f"{path} holds no attempt that could be gone on with.")
    RunFolder(path).check_free()
    last = attempts[-1]
    argv = _repeatable(path, last)
    if last.folder:
        _stand_in(path, last.folder)
    else:
        tell(
            f"headrace: where {path.name} was started was not written down; it goes on from here\n"
        )
    tell(f"headrace: {path.name}, attempt {last.number + 1}: {shlex.join(last.command)}\n")
    # It is the same job: its rules hold, and who attaches to it finds what it was asked for.
    asked = {name: each for name, each in last.asked.items() if name != "profiler_updates"}
    if asked:
        env.change({env.ASKED.name: json.dumps(asked)})
    return run_job(argv, run_dir=str(path))


def _find(run: str, runs_dir: str | None) -> Path:
    runs = runs_folder(runs_dir)
    for path in (runs / run, Path(run).expanduser()):
        if (path / "run.json").is_file():
            return path.resolve()
    there = [each.parent.name for each in sorted(runs.glob("*/run.json"))]
    meant = did_you_mean(run, there) or f" There are: {', '.join(there) or 'none'}."
    raise UsageError(f"There is no run {run} in {runs.absolute()}.{meant}")


def _repeatable(path: Path, last: Attempt) -> list[str]:
    if last.hides_secrets or any(HIDDEN in word for word in last.command):
        raise UsageError(
            f"{path.name}: its command held a secret, which was not written down: "
            f"{shlex.join(last.command)}. Type it again yourself, with --run-dir {path}; a secret "
            "in a variable of the environment need not be typed at all."
        )
    if last.command[:2] != ("headrace", "run"):
        raise UsageError(
            f"{path.name} was not started by headrace run but by {shlex.join(last.command)}: "
            "start that again."
        )
    return list(last.command[2:])


def _stand_in(path: Path, folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise UsageError(
            f"{path.name} was started in {folder}, and from there it would go on: "
            f"{error.strerror}. Bring it back, or type the command anew with --run-dir {path}."
        ) from error
