"""The `headrace run` and `headrace resume` of one job, from command line to exit code."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import UsageError, did_you_mean
from headrace.core.process.supervision import exit_code_of, signals_blocked, wait_for
from headrace.jobs.cli_args import direct_job
from headrace.jobs.failure import describe_exit
from headrace.jobs.job_request import with_job_file
from headrace.jobs.local import print_outcome, record_end, run_directly
from headrace.jobs.spec import job_options
from headrace.jobs.torchrun_process import discard_early, take_or_start
from headrace.records.redaction import HIDDEN
from headrace.records.run_folder import Attempt, RunFolder, runs_folder

_GRACE_S = 30.0  # what torchrun gives its ranks unless --shutdown-timeout says otherwise
_TORCHRUN_EXTRA_S = 10.0  # torchrun needs some time itself after its ranks have ended


def run_job(argv: Sequence[str], *, run_dir: str | None = None) -> int:
    """Run a script and return its exit code, that of the first failing rank, or 128 + a signal.

    With one process and no torchrun flag the script runs directly, and RANK is not set. Otherwise
    torchrun runs it, in a child process. Every process of the job ends when this one does.

    Args:
        argv: torchrun's flags and ours (--run-dir, --name), the script or a job file, and the
            script's arguments.
        run_dir: The run folder; it takes precedence over `argv`.

    Raises:
        UsageError: Wrong flags, or a script that cannot be run.
        LaunchError: The run folder is broken.
    """
    argv = with_job_file(argv)
    direct = direct_job(argv)
    if direct is None:
        described = _describe(argv) if set(argv) & set(job_options()["dry_run"].spellings) else None
        return _run_torchrun(argv, run_dir) if described is None else described
    discard_early()
    if run_dir is not None:
        direct = replace(direct, run=replace(direct.run, run_dir=run_dir, name=None))
    return run_directly(direct, argv)


def _describe(argv: Sequence[str]) -> int | None:
    """Print the dry run of a torchrun job; None: the --dry-run is among the script's arguments."""
    import torch

    from headrace.jobs.dry_run import describe_torchrun_job
    from headrace.jobs.torchrun_args import parse_torchrun_flags

    job = parse_torchrun_flags(argv)
    if not job.spec.run.dry_run:
        return None
    return describe_torchrun_job(job, torch.accelerator.device_count())


def _run_torchrun(argv: Sequence[str], run_dir: str | None) -> int:
    process = take_or_start()

    def grace_s() -> float:
        announced = process.announced()
        shutdown_s = _GRACE_S if announced is None else float(announced["shutdown_s"])
        return shutdown_s + _TORCHRUN_EXTRA_S

    with signals_blocked() as blocked:
        process.begin(argv, run_dir)
        returncode = wait_for(process.child, blocked, own_session=True, grace_s=grace_s)
        process.ended()
        announced = process.announced()
        if announced is not None:
            folder, attempt = RunFolder(Path(announced["run_dir"])), int(announced["attempt"])
            record_end(folder, attempt, exit_code_of(returncode))
    if returncode < 0:
        print_status(f"headrace: what ran the job was {describe_exit(returncode)}\n")
    if announced is not None:
        print_outcome(folder, attempt)
    return exit_code_of(returncode)


def resume_run(run: str, runs_dir: str | None = None) -> int:
    """Run a run's last command again, from the folder where it was typed; return the exit code.

    Args:
        run: The run's name or folder.
        runs_dir: The folder of all runs; see `runs_folder`.

    Raises:
        UsageError: There is no such run, it is running, or its recorded command cannot be repeated.
        LaunchError: The run folder is broken.
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
        print_status(
            f"headrace: where {path.name} was started was not written down; it goes on from here\n"
        )
    print_status(f"headrace: {path.name}, attempt {last.number + 1}: {shlex.join(last.command)}\n")
    # Rules and other arguments of the job hold for the new attempt, too.
    asked = {name: each for name, each in last.asked.items() if name != "profiler_updates"}
    if asked:
        env.change({env.JOB_REQUEST.name: json.dumps(asked)})
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
