"""A script in one process on this host, without torchrun: from its attempt to its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.core import env
from headrace.core.errors import HeadraceError
from headrace.core.tied import tied_command
from headrace.launch.ended import tell_how_it_went, write_down_end
from headrace.launch.failure import describe_end, last_traceback
from headrace.launch.host_site import only_host_site
from headrace.launch.local_requirements import install_here
from headrace.launch.own_flags import DirectJob
from headrace.launch.recording import Recording
from headrace.launch.run_limit import RunLimit
from headrace.launch.scripts import check_script, find_script
from headrace.launch.sites import Site
from headrace.launch.streams import Stream, open_stream, resize
from headrace.launch.supervise import GRACE_S, exit_code_of, signals_held, wait_for
from headrace.launch.surroundings import joined_environment, with_surroundings
from headrace.launch.tee import Tee, raw
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
    folder = open_run_folder(
        run_dir=job.run_dir, name=job.name, script=script, runs_dir=job.runs_dir
    )
    attempt = folder.start_attempt(
        command=["headrace", "run", *argv], argv=[job.script, *job.arguments], world_size=1
    )
    tell(f"headrace: run folder {folder.path}\n")
    limit = RunLimit(  # from here on: what brings the channels counts, as on SageMaker
        job.around.max_run_s, launcher=os.getpid(), folder=folder, attempt=attempt.number,
        is_passed_on=False,
    )  # fmt: skip
    try:
        run = _Run(job, script, folder, attempt, limit)
    except HeadraceError as error:
        write_down_end(folder, attempt.number, error.exit_code)
        raise
    return run.to_its_end()


class _Run:
    """One attempt of such a job, with all that its script is to find in place."""

    def __init__(
        self, job: DirectJob, script: str, folder: RunFolder, attempt: Attempt, limit: RunLimit
    ) -> None:
        self._job = job
        self._limit = limit
        self._folder = folder
        self._attempt = attempt
        self._log = folder.logs(attempt.number) / "rank-0.stderr"
        install_here(job.contract, job.around, folder, attempt)
        self._output = JobOutput(job.uploads, job.contract, folder.path)
        self._output.begin()  # first: another job that writes there is known before a copy is made
        with finished_on_error(self._output):
            self._site = self._make_site(script)
            self._uploads = HostUploads(job.uploads, self._site, folder.path)
            self._uploads.fetch()
        self._command = self._script_command(script)

    def to_its_end(self) -> int:
        """Run the script and return the exit code."""
        number = self._attempt.number
        with signals_held() as held:
            self._limit.is_passed_on = True
            recording = Recording(self._folder, self._attempt, self._job.options)
            self._uploads.start()
            returncode = self._run(recording, held)
            code = self._site.verdict(exit_code_of(returncode))
            write_down_end(self._folder, number, code)
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
        streams = open_stream(sys.stdout.buffer), open_stream(sys.stderr.buffer)
        child = self._start(recording, streams)
        tees = (
            Tee(streams[0].source, raw(sys.stdout.buffer), self._log.with_name("rank-0.stdout")),
            Tee(streams[1].source, raw(sys.stderr.buffer), self._log),
        )
        # A script may save for minutes once it was asked to stop; not once its time is over.
        returncode = wait_for(
            child, held, own_session=False, resized=lambda: resize(streams),
            grace_s=lambda: GRACE_S if self._limit.is_over or self._site.failure() else None,
        )  # fmt: skip
        self._limit.cancel()
        for tee in tees:
            tee.close()
        return returncode

    def _start(
        self, recording: Recording, streams: tuple[Stream, Stream]
    ) -> subprocess.Popen[bytes]:
        own = {
            **self._site.environment,
            **self._uploads.environment(),
            env.RUN_DIR.name: str(self._folder.path),
        }
        child = subprocess.Popen(
            tied_command(sys.executable, self._site.placed(self._command)),
            stdout=streams[0].written,
            stderr=streams[1].written,
            env=env.child_environment(joined_environment(own, recording.environment())),
            cwd=self._site.folder,
            close_fds=False,  # what the shell opened, as by <(command), is the script's
        )
        for stream in streams:
            stream.handed_over()
        return child

    def _make_site(self, script: str) -> Site:
        job = self._job
        site = only_host_site(
            job.contract, script=script, is_module=job.module, folder=self._folder.path,
            distribution=None, count_devices=_count_devices, arguments=job.arguments,
            environment=job.around.environment,
        )  # fmt: skip
        return with_surroundings(site, job.around, self._folder.path)

    def _script_command(self, script: str) -> list[str]:
        python = env.PYTHON_EXEC.get() or sys.executable
        if self._site.folder is not None and not self._job.module:
            script = str(Path(script).absolute())
        module = ["-m"] if self._job.module else []
        return [python, "-u", *module, script, *self._site.arguments, *self._job.arguments]


def _checked_script(job: DirectJob) -> str:
    if job.module:
        return job.script
    script = find_script(job.script, job.contract.source_dir)
    check_script(script)
    return script


def _describe(job: DirectJob, script: str) -> int:
    from headrace.launch.dry_run import describe_direct_job

    return describe_direct_job(job, script, _count_devices())


def _count_devices() -> int:
    """Return how many devices this host has, asked in another process: torch starts threads."""
    asked = "import torch; print(torch.accelerator.device_count())"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=False).stdout
    return int(told) if told.strip().isdigit() else 0
