"""The run of a job on one host, from its channels to its last upload.

Every job comes through here: a script that runs directly, torchrun's ranks on this host, and each
host of a cluster, with ranks or without.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core import env
from headrace.core.errors import LaunchError
from headrace.jobs.environment.host_environment import (
    HostLayout,
    host_environment,
    single_host_environment,
)
from headrace.jobs.environment.script_environment import ScriptEnvironment, join_environments
from headrace.jobs.hosts.driver_protocol import HostAssignment
from headrace.jobs.recording import Recording
from headrace.jobs.requirements import install_requirements
from headrace.jobs.spec import JobSpec
from headrace.jobs.sync.host_sync import (
    HostSync,
    OutputUpload,
    finished_on_error,
    host_output_upload,
)
from headrace.platforms.training_job import Distribution
from headrace.records.run_folder import Attempt, RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEnd:
    """The end of a host's script or ranks."""

    # The exit code as a shell has it: 128 + n where signal n ended it
    code: int = LaunchError.exit_code
    command: Sequence[str] = ()  # what failed, for the platform's failure file
    traceback: str = ""  # the last traceback of the one that failed first; "": none is known
    is_clean: bool = True  # no rank was killed, possibly while it wrote a file


@dataclass(kw_only=True)
class HostRun:
    """The run of a job on one host: `prepare`, `start`, the script, `finish`."""

    build_environment: Callable[[], ScriptEnvironment]  # it copies and mounts channels
    make_sync: Callable[[ScriptEnvironment], HostSync]  # of this host's checkpoints
    output: OutputUpload  # of what the script leaves in its output folders
    record: Callable[[], Recording] | None = None  # None: the driver of a cluster records

    def __post_init__(self) -> None:
        self._recording: Recording | None = None
        self._sync: HostSync | None = None
        self.script_env = ScriptEnvironment()

    def prepare(self) -> None:
        """Bring here what the script needs: channels, environment, checkpoints.

        Raises UsageError (a channel or a URL that cannot be used, or contradictory variables),
        StorageError (a channel or a checkpoint cannot be fetched), LaunchError (a folder cannot be
        made).
        """
        self.output.begin()  # first: fails before any copy where another job writes there
        with finished_on_error(self.output):
            self.script_env = self.build_environment()
            self._sync = self.make_sync(self.script_env)
            self._sync.fetch()

    def start(self) -> dict[str, str | None]:
        """Start recording and sync; return the script's variables, None for one to remove."""
        assert self._sync is not None
        environment = {**self.script_env.environment, **self._sync.environment()}
        if self.record is not None:
            self._recording = self.record()
        self._sync.start()
        if self._recording is None:
            return dict(environment)
        return join_environments(environment, self._recording.environment())

    def verdict(self, code: int) -> int:
        """Return the job's exit code for the script's: a failed channel fails the job."""
        return self.script_env.verdict(code)

    def finish(self, end: ScriptEnd) -> None:
        """Write the platform's failure file, close the records, and upload the last files."""
        self.script_env.note_end(end.code, list(end.command), end.traceback)
        if self._recording is not None:
            self._recording.finish()
        self.finish_uploads(clean=end.is_clean)

    def finish_uploads(self, *, clean: bool) -> None:
        """Upload the last files; `clean`: no rank was killed, possibly while it wrote a file."""
        if self._sync is not None:
            self._sync.finish(clean=clean)
        self.output.finish()


def single_host_run(
    job: JobSpec, script: str, folder: RunFolder, attempt: Attempt, *,
    distribution: Distribution | None, count_devices: Callable[[], int], is_only_host: bool,
) -> HostRun:  # fmt: skip
    """Install the job's requirements, and return its run on this host.

    Without a distribution the script runs once. Devices are counted only where the contract needs
    their number. `is_only_host`: no other host has ranks of the job, with a launcher of its own.
    Raises UsageError (there is no such requirements file, or no contract for the output path),
    LaunchError (the installation failed).
    """
    install_requirements(job.contract, job.environment, folder, attempt)
    run = folder.path

    def make_sync(script_env: ScriptEnvironment) -> HostSync:
        if is_only_host:
            return HostSync(job.sync, script_env, run)
        return HostSync(
            job.sync, script_env, run, sync_name=socket.gethostname(), all_sync_names=None
        )

    return HostRun(
        build_environment=lambda: single_host_environment(
            job, script, folder=run, distribution=distribution, count_devices=count_devices
        ),
        make_sync=make_sync,
        output=OutputUpload(job.sync, job.contract, run),
        record=lambda: Recording(folder, attempt, job.recording),
    )


def cluster_host_run(job: JobSpec, script: str, assignment: HostAssignment) -> HostRun:
    """Return the run of a job on one of its hosts; the driver of the cluster records it."""
    run = Path(env.RUN_DIR.get() or ".")
    plan = None if assignment.plan is None else HostLayout.from_json(assignment.plan)
    return HostRun(
        build_environment=lambda: host_environment(
            job, script, plan, assignment.host, folder=run, devices=assignment.devices,
            cores=assignment.cores or None,
        ),
        make_sync=lambda script_env: HostSync(
            job.sync, script_env, run, sync_name=assignment.sync_name,
            all_sync_names=assignment.all_sync_names,
        ),
        output=host_output_upload(job.sync, job.contract, assignment),
    )  # fmt: skip
