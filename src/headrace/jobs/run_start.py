"""A run started as a child process, from a job request."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.process.parent_death import parent_bound_command
from headrace.jobs.job_request import JobRequest
from headrace.jobs.options import Texts
from headrace.jobs.run_handle import RunHandle
from headrace.records.redaction import redact
from headrace.records.run_folder import LAUNCHER_LOG, RunFolder, open_run_folder

_HEADRACE = (sys.executable, "-P", "-m", "headrace.cli.main")


def run_command(
    request: JobRequest, flag: str, options: Texts | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return the command line that starts a job, without its secrets, and variables with those.

    The texts of `options`, by option name, follow the request's own.
    """
    words = ["run", flag, *request.words(options)]
    shown = redact(words)
    return [*_HEADRACE, *shown], {**request.variables, **env.split_command_line(words, shown)}


def start_run(
    request: JobRequest,
    name: str | None,
    *,
    stem: str,
    tied: bool,
    folder: Path | None = None,
    runs_dir: str | None = None,
    options: Texts | None = None,
) -> RunHandle:
    """Start a run, or the next attempt of one; its output goes to its launcher's log.

    Args:
        request: The job.
        name: The run's name; None: made of the stem and the time.
        stem: What a run without a name is named after.
        tied: Whether the run ends with this process.
        folder: Where it starts; None: here.
        runs_dir: Where runs lie; None: ./runs.
        options: Further options, as texts by name.

    Raises:
        UsageError: The name is not valid, or the run is running.
    """
    run = open_run_folder(run_dir=None, name=name, script=stem, runs_dir=runs_dir)
    before = len(run.attempts())
    run.check_free()
    command, variables = run_command(request, f"--run-dir={run.path}", options)
    with (run.path / LAUNCHER_LOG).open("ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            parent_bound_command(sys.executable, command) if tied else command,
            env=env.child_environment(
                {**variables, env.JOB_REQUEST.name: request.arguments_json()}
            ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,  # ctrl-C in a notebook, or its end, does not signal the job
        )
    return RunHandle(path=run.path, number=before + 1, begin=begin, process=process)


def check_run(run: RunHandle) -> None:
    """Raise where an ended run failed or was refused; print it where the run was stopped.

    Raises UsageError (it was refused, and its folder is removed), LaunchError (it failed; the
    message ends with its last output).
    """
    try:
        run.check()
    finally:
        _remove_refused(run)
    if run.state == "Stopped":
        attempt = run.attempt
        why = f" ({attempt.reason})" if attempt is not None and attempt.reason else ""
        print_status(f"{run.name} was stopped{why}: look whether it did what you expect")


def _remove_refused(run: RunHandle) -> None:
    """Remove the folder of a run that was refused before its first attempt."""
    others = [path for path in run.path.iterdir() if path.name != LAUNCHER_LOG]
    if not others and not RunFolder(run.path).attempts():
        (run.path / LAUNCHER_LOG).unlink(missing_ok=True)
        run.path.rmdir()
