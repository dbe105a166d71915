"""A script in one process on this host, without torchrun: from its attempt to its exit code."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from headrace.core import env
from headrace.core.errors import HeadraceError
from headrace.launch.ended import tell_how_it_went, write_down_end
from headrace.launch.failure import describe_end, last_traceback
from headrace.launch.own_flags import DirectJob
from headrace.launch.recording import Recording
from headrace.launch.requirements.local import install_here
from headrace.launch.run_limit import RunLimit
from headrace.launch.scripts import check_script, find_script
from headrace.launch.shown_script import run_shown, script_command
from headrace.launch.site.following_rank import follow_leader
from headrace.launch.site.host_site import only_host_site
from headrace.launch.site.outer_job import TORCHRUNS
from headrace.launch.site.outer_rank import Led, OuterRank, find_outer_rank
from headrace.launch.site.sites import Site
from headrace.launch.site.surroundings import joined_environment, with_surroundings
from headrace.launch.supervise import GRACE_S, exit_code_of, signals_held
from headrace.launch.told import tell
from headrace.launch.uploads.host_uploads import HostUploads
from headrace.launch.uploads.job_output import JobOutput, finished_on_error
from headrace.records.run_folder import Attempt, RunFolder, open_run_folder


def run_directly(job: DirectJob, argv: Sequence[str]) -> int:
    """Run a script and return its exit code, or 128 + a signal.

    Args:
        job: What the command line asks for.
        argv: The command line.

    Raises:
        UsageError: A script that cannot be run, or a channel that is not there.
        LaunchError: The run's folder is broken.
        StorageError: A channel or a checkpoint cannot be fetched.
    """
    script = _checked_script(job)
    if job.around.dry_run:
        return _describe(job, script)
    rank = find_outer_rank()
    if rank is not None and not rank.leads:
        return follow_leader(job, script, rank)
    folder, attempt = _begin(job, argv, script, rank)
    limit = RunLimit(  # from here on: what brings the channels counts, as on SageMaker
        job.around.max_run_s, launcher=os.getpid(), folder=folder, attempt=attempt.number,
        is_passed_on=False,
    )  # fmt: skip
    try:
        run = _Run(job, script, folder, attempt, limit, rank)
    except HeadraceError as error:
        write_down_end(folder, attempt.number, error.exit_code)
        raise
    return run.to_its_end()


class _Run:
    """One attempt of such a job, with all that its script is to find in place."""

    def __init__(
        self, job: DirectJob, script: str, folder: RunFolder, attempt: Attempt, limit: RunLimit,
        rank: OuterRank | None,
    ) -> None:  # fmt: skip
        self._job = job
        self._limit = limit
        self._folder = folder
        self._attempt = attempt
        self._rank = rank
        number = rank.world.rank if rank is not None else 0
        self._log = folder.logs(attempt.number) / f"rank-{number}.stderr"
        install_here(job.contract, job.around, folder, attempt)
        self._output = JobOutput(job.uploads, job.contract, folder.path)
        self._output.begin()  # first: another job that writes there is known before a copy is made
        with finished_on_error(self._output):
            self._site = self._make_site(script)
            self._uploads = self._host_uploads()
            self._uploads.fetch()
        self._command = script_command(job, script, self._site)

    def to_its_end(self) -> int:
        """Run the script and return the exit code."""
        number = self._attempt.number
        with signals_held() as held:
            self._limit.is_passed_on = True
            recording = Recording(self._folder, self._attempt, self._job.options)
            self._uploads.start()
            returncode = self._run(recording, held)
            code = self._site.verdict(exit_code_of(returncode))
            ended = code if self._rank is None else self._rank.verdict(code)
            write_down_end(self._folder, number, ended)
        # Signals are free again: whoever does not want to wait for this may leave.
        if returncode != 0:
            tell(f"headrace: {self._job.script}: {describe_end(returncode)}; log: {self._log}\n")
        told = last_traceback(self._log) if returncode else ""
        self._site.note_end(code, self._command, told)
        recording.finish()
        self._uploads.finish(clean=returncode >= 0)
        self._output.finish()
        tell_how_it_went(self._folder, number)
        return code

    def _run(self, recording: Recording, held: frozenset[signal.Signals]) -> int:
        own = {
            **self._site.environment,
            **self._uploads.environment(),
            env.RUN_DIR.name: str(self._folder.path),
        }
        environment = joined_environment(own, recording.environment())
        if self._rank is not None:
            for name in TORCHRUNS:  # ranks meet where torchrun has them meet, as always
                environment.pop(name, None)
            self._tell_others(self._rank, environment)
        # A script may save for minutes once it was asked to stop; not once its time is over.
        returncode = run_shown(
            self._command, site=self._site, environment=environment, log=self._log, held=held,
            grace_s=lambda: GRACE_S if self._limit.is_over or self._site.failure() else None,
        )  # fmt: skip
        self._limit.cancel()
        return returncode

    def _tell_others(self, rank: OuterRank, environment: Mapping[str, str | None]) -> None:
        led = Led(
            run_dir=str(self._folder.path), attempt=self._attempt.number, environment=environment,
            arguments=self._site.arguments, folder=self._site.folder, places=self._site.places,
        )  # fmt: skip
        rank.tell_others(led)

    def _host_uploads(self) -> HostUploads:
        job, path, rank = self._job, self._folder.path, self._rank
        if rank is None or rank.world.size == rank.world.local_size:
            return HostUploads(job.uploads, self._site, path)
        # The other hosts' first ranks keep theirs.
        return HostUploads(
            job.uploads, self._site, path, kept_as=socket.gethostname(), kept_by=None
        )

    def _make_site(self, script: str) -> Site:
        job = self._job
        site = only_host_site(
            job.contract, script=script, is_module=job.module, folder=self._folder.path,
            distribution=None, count_devices=_count_devices, arguments=job.arguments,
            environment=job.around.environment,
        )  # fmt: skip
        return with_surroundings(site, job.around, self._folder.path)


def _begin(
    job: DirectJob, argv: Sequence[str], script: str, rank: OuterRank | None
) -> tuple[RunFolder, Attempt]:
    """Begin the attempt: of this process alone, or of the ranks that torchrun has started."""
    run_dir, command, ranks = job.run_dir, ("headrace", "run", *argv), 1
    if rank is not None:
        rank.lead()
        run_dir = run_dir or (None if job.name else rank.run_before())
        command, ranks = rank.command, rank.world.size
    folder = open_run_folder(run_dir=run_dir, name=job.name, script=script, runs_dir=job.runs_dir)
    attempt = folder.start_attempt(
        command=command, argv=[job.script, *job.arguments], world_size=ranks
    )
    tell(f"headrace: run folder {folder.path}\n")
    return folder, attempt


def _checked_script(job: DirectJob) -> str:
    if job.module:
        return job.script
    script = find_script(job.script, job.contract.source_dir)
    check_script(script)
    return script


def _describe(job: DirectJob, script: str) -> int:
    import torch

    from headrace.launch.dry_run import describe_direct_job

    return describe_direct_job(job, script, torch.accelerator.device_count())


def _count_devices() -> int:
    """Return how many devices this host has, asked in another process: torch starts threads."""
    asked = "import torch; print(torch.accelerator.device_count())"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=False).stdout
    return int(told) if told.strip().isdigit() else 0
