"""Stopping and resuming runs from another process than their launcher's, as from a page."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from headrace.core.errors import LaunchError, UsageError
from headrace.jobs.run_handle import RunHandle
from headrace.records.run_folder import LAUNCHER_LOG, RunFolder

_START_S = 60.0
_POLL_S = 0.1


def stop_run(path: Path) -> str:
    """Stop a run as `headrace.Estimator` does, and return what was done, in words.

    Raises:
        UsageError: No process of this host runs it.
    """
    run = RunHandle.of(path)
    if run.exit_code is not None or run.state != "InProgress":
        raise UsageError(f"{run.name} is not running on this host: there is nothing to stop.")
    run.stop()
    return f"{run.name} was stopped."


def resume_in_background(path: Path) -> str:
    """Run a run's last command again in a session of its own, and return what was done, in words.

    Its output goes to the run's launcher log.

    Raises:
        UsageError: The run is running, or its command cannot be repeated.
        LaunchError: The new attempt did not begin.
    """
    folder = RunFolder(path)
    folder.check_free()
    before = len(folder.attempts())
    log = path / LAUNCHER_LOG
    with log.open("ab") as output:
        begin = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", "resume", str(path)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + _START_S
    while len(folder.attempts()) == before:
        if time.monotonic() > deadline:
            return f"{path.name} was asked to go on, and has not begun yet: see {log}."
        if process.poll() is not None:
            said = log.read_bytes()[begin:].decode("utf-8", errors="replace").strip()
            raise LaunchError(f"{path.name} was not resumed: {said or 'nothing was said why.'}")
        time.sleep(_POLL_S)
    return f"{path.name} goes on with attempt {before + 1}."
