"""A job of one process on this host without torchrun, from its attempt to its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import HeadraceError, LaunchError
from headrace.core.process.supervision import DEFAULT_GRACE_S, exit_code_of, signals_blocked
from headrace.jobs.cli_args import check_script, find_script
from headrace.jobs.environment.existing_job import TORCHRUN_VARIABLES
from headrace.jobs.environment.nested_torchrun import (
    LeaderMessage,
    NestedRank,
    find_nested_rank,
    run_follower,
)
from headrace.jobs.failure import TimeLimit, describe_exit, last_traceback
from headrace.jobs.host_run import HostRun, ScriptEnd, single_host_run
from headrace.jobs.output.script_output import run_script, script_command
from headrace.jobs.spec import JobSpec
from headrace.records.run_folder import Attempt, RunFolder, open_run_folder


def record_end(folder: RunFolder, attempt: int, exit_code: int) -> None:
    """Record how an attempt ended, or print why that failed."""
    # A full disk or a removed run folder must not replace the script's own exit code.
    try:
        folder.end_attempt(attempt, exit_code)
    except (OSError, LaunchError) as error:
        print_status(
            f"headrace: that the run ended with {exit_code} cannot be written down: {error}\n"
        )


def print_outcome(folder: RunFolder, attempt: int) -> None:
    """Print the verdict of an ended attempt, and the findings of the rules it was given."""
    # Imported after the job has ended: NumPy starts threads (see `signals_blocked`).
    from headrace.jobs.verdict import print_rules, print_verdict

    print_verdict(folder, attempt)
    print_rules(folder, attempt)


def run_directly(job: JobSpec, argv: Sequence[str]) -> int:
    """Run a script and return its exit code, or 128 + a signal."""
    script = _checked_script(job)
    if job.run.dry_run:
        return _describe(job, script)
    rank = find_nested_rank()
    if rank is not None and not rank.is_leader:
        return run_follower(job, script, rank)
    folder, attempt = _start_attempt(job, argv, script, rank)
    limit = TimeLimit(  # from here on: the copying of channels counts, as on SageMaker
        job.environment.max_run_s, launcher=os.getpid(), folder=folder, attempt=attempt.number,
        is_passed_on=False,
    )  # fmt: skip
    try:
        run = single_host_run(
            job, script, folder, attempt, distribution=None, count_devices=_count_devices,
            is_only_host=rank is None or rank.world.size == rank.world.local_size,
        )  # fmt: skip
        run.prepare()
    except HeadraceError as error:
        record_end(folder, attempt.number, error.exit_code)
        raise
    return _LocalRun(job, script, folder, attempt, limit, rank, run).to_its_end()


class _LocalRun:
    """One attempt of a job of one process, prepared."""

    def __init__(
        self, job: JobSpec, script: str, folder: RunFolder, attempt: Attempt, limit: TimeLimit,
        rank: NestedRank | None, run: HostRun,
    ) -> None:  # fmt: skip
        self._job = job
        self._limit = limit
        self._folder = folder
        self._attempt = attempt
        self._rank = rank
        self._run = run
        number = rank.world.rank if rank is not None else 0
        self._log = folder.logs(attempt.number) / f"rank-{number}.stderr"
        self._command = script_command(job, script, run.script_env)

    def to_its_end(self) -> int:
        """Run the script and return the exit code."""
        number = self._attempt.number
        with signals_blocked() as blocked:
            self._limit.is_passed_on = True
            returncode = self._run_script(self._run.start(), blocked)
            code = self._run.script_env.verdict(exit_code_of(returncode))
            ended = code if self._rank is None else self._rank.verdict(code)
            record_end(self._folder, number, ended)
        # Signals are no longer blocked: from here on the user may interrupt. While the records are
        # closed, the verdict's modules are imported.
        threading.Thread(target=lambda: import_module("headrace.jobs.verdict"), daemon=True).start()
        if returncode != 0:
            print_status(
                f"headrace: {self._job.script.path}: {describe_exit(returncode)}; log: {self._log}"
                "\n"
            )
        traceback = last_traceback(self._log) if returncode else ""
        self._run.finish(
            ScriptEnd(
                code=code, command=self._command, traceback=traceback, is_clean=returncode >= 0
            )
        )
        print_outcome(self._folder, number)
        return code

    def _run_script(
        self, environment: dict[str, str | None], blocked: frozenset[signal.Signals]
    ) -> int:
        environment[env.RUN_DIR.name] = str(self._folder.path)
        script_env = self._run.script_env
        if self._rank is not None:
            for name in TORCHRUN_VARIABLES:  # ranks keep torchrun's own rendezvous
                environment.pop(name, None)
            self._share_with_followers(self._rank, environment)
        # A script may save for minutes after a stop signal, but not after the job's time limit.
        returncode = run_script(
            self._command,
            script_env=script_env,
            environment=environment,
            log=self._log,
            blocked=blocked,
            grace_s=lambda: (
                DEFAULT_GRACE_S if self._limit.is_over or script_env.failure() else None
            ),
        )
        self._limit.cancel()
        return returncode

    def _share_with_followers(
        self, rank: NestedRank, environment: Mapping[str, str | None]
    ) -> None:
        script_env = self._run.script_env
        leader_message = LeaderMessage(
            run_dir=str(self._folder.path), attempt=self._attempt.number, environment=environment,
            arguments=script_env.arguments, folder=script_env.folder,
            bind_mounts=script_env.bind_mounts,
        )  # fmt: skip
        rank.share_with_followers(leader_message)


def _start_attempt(
    job: JobSpec, argv: Sequence[str], script: str, rank: NestedRank | None
) -> tuple[RunFolder, Attempt]:
    """Start the attempt, of this process alone or of the ranks of a surrounding torchrun."""
    run_dir, command, ranks = job.run.run_dir, ("headrace", "run", *argv), 1
    if rank is not None:
        rank.announce_leader()
        run_dir = run_dir or (None if job.run.name else rank.run_before())
        command, ranks = rank.command, rank.world.size
    folder = open_run_folder(
        run_dir=run_dir, name=job.run.name, script=script, runs_dir=job.run.runs_dir
    )
    attempt = folder.start_attempt(
        command=command, argv=[job.script.path, *job.script.arguments], world_size=ranks
    )
    print_status(f"headrace: run folder {folder.path}\n")
    return folder, attempt


def _checked_script(job: JobSpec) -> str:
    if job.script.is_module:
        return job.script.path
    script = find_script(job.script.path, job.contract.source_dir)
    check_script(script)
    return script


def _describe(job: JobSpec, script: str) -> int:
    import torch

    from headrace.jobs.dry_run import describe_direct_job

    return describe_direct_job(job, script, torch.accelerator.device_count())


_DEVICE_FILES = (
    "nvidia[0-9]*", "nvhost*", "nvmap",  # NVIDIA: cards, Jetson
    "dxg",  # within Windows
    "kfd", "dri/renderD*",  # AMD, Intel
    "accel*", "davinci*", "hl*", "mlu*", "neuron*",
)  # fmt: skip
"""Files in /dev by which Linux shows accelerators. A host without any of them has no device, and
needs no torch to say so: its import takes one to three seconds."""


def _count_devices() -> int:
    """Return this host's device count, from a child process: importing torch starts threads."""
    if not any(any(Path("/dev").glob(name)) for name in _DEVICE_FILES):
        return 0
    code = "import torch; print(torch.accelerator.device_count())"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).stdout
    return int(output) if output.strip().isdigit() else 0
