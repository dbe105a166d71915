"""`headrace run`: one job on this host, from its command line to its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.launch.direct import run_directly
from headrace.launch.ended import tell_how_it_went, write_down_end
from headrace.launch.estimator.job_file import with_job_file
from headrace.launch.failure import describe_end
from headrace.launch.own_flags import direct_job
from headrace.launch.script_flags import DRY_RUN
from headrace.launch.supervise import exit_code_of, signals_held, wait_for
from headrace.launch.told import tell
from headrace.records.run_folder import RunFolder

_GRACE_S = 30.0  # what torchrun gives its ranks unless --shutdown-timeout says otherwise
_TORCHRUN_EXTRA_S = 10.0  # torchrun needs some time itself after its ranks have ended


def run_job(argv: Sequence[str], *, run_dir: str | None = None) -> int:
    """Run a script and return its exit code, that of the first failing rank, or 128 + a signal.

    One process and no flag of torchrun's: the script runs directly, and RANK is not set.
    Otherwise torchrun runs it, in a process of its own. Every process ends when this one does.

    Args:
        argv: torchrun's flags and ours (--run-dir, --name), the script or a job file, and the
            script's arguments.
        run_dir: The run's folder, whatever `argv` says of it.

    Raises:
        UsageError: Wrong flags, or a script that cannot be run.
        LaunchError: The run's folder is broken.
    """
    argv = with_job_file(argv)
    direct = direct_job(argv)
    if direct is None:
        described = _describe(argv) if set(argv) & {*DRY_RUN} else None
        return _run_torchrun(argv, run_dir) if described is None else described
    if run_dir is not None:
        direct = replace(direct, run_dir=run_dir, name=None)
    return run_directly(direct, argv)


def _describe(argv: Sequence[str]) -> int | None:
    """Print what a job of torchrun's would be; None: the flag that asks for it is the script's."""
    import torch

    from headrace.launch.dry_run import describe_torchrun_job
    from headrace.launch.flags import parse_torchrun_flags

    job = parse_torchrun_flags(argv)
    if not job.around.dry_run:
        return None
    return describe_torchrun_job(job, torch.accelerator.device_count())


def _run_torchrun(argv: Sequence[str], run_dir: str | None) -> int:
    reading, writing = os.pipe()
    announcement = _Announcement(reading)
    # -u: what the ranks say is shown at once, also into a pipe.
    own = [sys.executable, "-u", "-P", "-m", "headrace.launch.torchrun"]
    own += [] if run_dir is None else ["--run-dir", run_dir]
    with signals_held() as held:
        child = subprocess.Popen(
            [*own, "--parent", str(os.getpid()), "--announce", str(writing), "--", *argv],
            pass_fds=[writing],
            start_new_session=True,  # ctrl-C comes to us alone, and is passed on once
        )
        os.close(writing)
        returncode = wait_for(
            child,
            held,
            own_session=True,
            grace_s=lambda: announcement.shutdown_s() + _TORCHRUN_EXTRA_S,
        )
        announced = announcement.read()
        if announced is not None:
            write_down_end(announced.folder, announced.attempt, exit_code_of(returncode))
    if returncode < 0:
        tell(f"headrace: what ran the job was {describe_end(returncode)}\n")
    if announced is not None:
        tell_how_it_went(announced.folder, announced.attempt)
    return exit_code_of(returncode)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Announced:
    folder: RunFolder
    attempt: int
    shutdown_s: float


class _Announcement:
    """What the torchrun process tells once it has read its flags; nothing before that."""

    def __init__(self, reading_fd: int) -> None:
        self._fd = reading_fd
        os.set_blocking(reading_fd, False)
        self._announced: _Announced | None = None

    def read(self) -> _Announced | None:
        if self._announced is None:
            try:
                line = os.read(self._fd, 64 * 1024)
            except BlockingIOError:
                return None
            if line.endswith(b"\n"):
                told = json.loads(line)
                self._announced = _Announced(
                    folder=RunFolder(Path(told["run_dir"])),
                    attempt=told["attempt"],
                    shutdown_s=told["shutdown_s"],
                )
        return self._announced

    def shutdown_s(self) -> float:
        announced = self.read()
        return _GRACE_S if announced is None else announced.shutdown_s
