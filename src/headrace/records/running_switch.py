"""The live switch of a job that runs now, and why there is none to turn for others."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from headrace.core.errors import RecordsError
from headrace.core.files import owner_name
from headrace.records.live_switch import SWITCH_FILE, LiveSwitch
from headrace.records.reader import Records, recorded_attempts
from headrace.records.run_folder import Attempt, RunFolder, running_launcher


def running_switch(run: Path) -> LiveSwitch:
    """Return the switch of a job that runs on this host.

    Raises:
        RecordsError: It does not run here, is not recorded, or belongs to another user; the message
            says which.
        LaunchError: run.json is broken.
    """
    attempts = RunFolder(run).attempts()
    if attempts:
        _check_runs_here(run, attempts[-1])
        folder = RunFolder(run).records(attempts[-1].number)
    else:
        folder = _open_records(run)
    file = folder / SWITCH_FILE
    if not file.exists():
        raise RecordsError(
            f"{run.name} is not recorded: it was started with --profile off, or is only just "
            "starting or ending."
        )
    if not os.access(file, os.R_OK | os.W_OK):
        owner = owner_name(file)
        raise RecordsError(f"{run.name} belongs to {owner}, who alone may change its recording.")
    return LiveSwitch(folder)


def _check_runs_here(run: Path, attempt: Attempt) -> None:
    ended = attempt.exit_code is not None
    host = attempt.launcher.get("host", platform.node())
    # A shared file system shows its lock to other hosts, too, but its times are those of its own.
    if not ended and host != platform.node():
        raise RecordsError(f"{run.name} was started on {host}: change its recording there.")
    if ended or running_launcher(run, attempt.launcher) is None:
        raise _not_running(run)


def _open_records(run: Path) -> Path:
    """Return the folder of records that are being written, of a run without run.json."""
    recorded = recorded_attempts(run)
    records = Records(run, recorded[-1]) if recorded else None
    if records is None or not records.live:
        raise _not_running(run)
    return records.folder


def _not_running(run: Path) -> RecordsError:
    return RecordsError(f"{run.name} is not running on this host: there is nothing to switch.")
