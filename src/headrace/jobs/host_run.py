"""The run of a job on one host, from its channels to its last upload, and its recording.

Every job comes through here: a script that runs directly, torchrun's ranks on this host, and each
host of a cluster, with ranks or without.

The collector of a recording gathers what ranks and workers write and samples the system. It ends
when its standard input closes, also where its parent was killed; then it closes the records, which
the parent does itself where it ends the job. Where the collector itself is killed, another takes
over; meanwhile the job's events wait in its rings, which hold a few seconds of them.

Each host of a cluster prepares itself, reports to the job's driver that it is ready, and waits for
all others. So no script starts anywhere if one host lacks what it needs, and no rank waits at a
rendezvous, which has a timeout, for a host that still copies data.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import HeadraceError, LaunchError
from headrace.core.overrides import APPLIED, RANK_THREADS, thread_count
from headrace.core.process.sidecar import RestartedSidecar, Sidecar
from headrace.core.source_location import SITECUSTOMIZE_DIR
from headrace.jobs.environment.existing_job import find_existing_job
from headrace.jobs.environment.host_environment import (
    HostLayout,
    host_environment,
    single_host_environment,
)
from headrace.jobs.environment.script_environment import ScriptEnvironment, join_environments
from headrace.jobs.failure import describe_exit
from headrace.jobs.requirements import install_requirements
from headrace.jobs.spec import JobSpec, RecordingOptions
from headrace.jobs.sync.host_sync import (
    UPLOAD_FAILED,
    HostSync,
    OutputUpload,
    SyncNames,
    finished_on_error,
    host_output_upload,
)
from headrace.jobs.tracking import mlflow_variables, spool_of
from headrace.platforms.training_job import Distribution
from headrace.records.host_place import HostPlace
from headrace.records.layout import FIRST_RANK, METRICS_FILE, RINGS
from headrace.records.live_switch import create_live_switch
from headrace.records.redaction import hide_variables, redact, redact_traceback
from headrace.records.run_folder import Attempt, RunFolder

_DEEP_S = 365 * 24 * 3600.0  # as long as the run lasts
_CLOSE_S, _SCRAPER_CLOSE_S = 60.0, 20.0  # then a collector goes on, a scraper is killed
_MAX_RESTARTS = 9


def _print_killed(code: int, has_restarted: bool) -> None:  # noqa: FBT001 - a callback
    what = (
        "another takes over" if has_restarted else "what the job does from now on is not recorded"
    )
    print_status(f"the process that collects records was {describe_exit(code)}; {what}")


class Recording:
    """The recording of one attempt on this host.

    Args:
        folder: Of the run; on a host whose records another host keeps, that of its agent.
        place: This host's place in the attempt.
        options: How it is recorded.
        first_source: The log whose metrics have no other name than their own.
    """

    def __init__(
        self, folder: RunFolder, place: HostPlace, options: RecordingOptions,
        first_source: str = FIRST_RANK,
    ) -> None:  # fmt: skip
        self._place = place
        self._records = folder.records(place.attempt)
        self._spool = None if place.is_elsewhere else spool_of(folder)
        self._overrides = options.overrides
        self._applied = folder.path / APPLIED
        if self._overrides:
            shutil.rmtree(self._applied, ignore_errors=True)  # an earlier attempt's
        self._scraper: Sidecar | None = None
        if options.metrics and not place.is_elsewhere:  # where the logs of all hosts are
            request = {
                "logs": str(folder.logs(place.attempt)), "file": str(folder.path / METRICS_FILE),
                "attempt": place.attempt, "metrics": dict(options.metrics),
                "first_source": first_source,
                "spool": None if self._spool is None else str(self._spool),
            }  # fmt: skip
            self._scraper = Sidecar("headrace.jobs.metric_scraper", request)
        self._collector: RestartedSidecar | None = None
        if options.profile == "off":
            return
        (self._records / RINGS).mkdir(parents=True, exist_ok=True)
        switch = create_live_switch(self._records, interval_s=options.interval_s)
        if options.profile == "deep":
            switch.go_deep(_DEEP_S)
        self._collector = RestartedSidecar(
            "headrace.observe.probe.collector_process",
            {"folder": str(self._records), "place": asdict(place)},
            restarts=_MAX_RESTARTS,
            killed=_print_killed,
        )

    def environment(self) -> dict[str, str | None]:
        """Return the variables that have a process of the job recorded, with its overrides."""
        found: dict[str, str | None] = {env.RECORDS_DIR.name: None, env.APPLY.name: None}
        found[env.ATTEMPT.name] = str(self._place.attempt)
        if self._collector is not None:
            found[env.RECORDS_DIR.name] = str(self._records)
        if self._overrides:
            found[env.APPLY.name] = ",".join(map(str, self._overrides))
        threads = thread_count(self._overrides, RANK_THREADS)
        if threads is not None:
            found |= env.thread_variables(threads)
        found[env.SPOOL.name] = None if self._spool is None else str(self._spool)
        if self._spool is not None:
            found |= mlflow_variables(self._spool)
        if self._collector is not None or self._overrides or self._spool is not None:
            found[env.PYTHONPATH.name] = env.pythonpath_with(SITECUSTOMIZE_DIR)
        return found

    def finish(self, code: int | None = None) -> None:
        """Close the records, and print which overrides no loader used.

        Where closing takes too long, the records stay as they are.

        Args:
            code: The exit code of what was recorded; None if it is not one.
        """
        if self._scraper is not None and self._scraper.end(patience_s=_SCRAPER_CLOSE_S) is None:
            print_status("--metric: the expressions take too long; some values are missing")
        if self._collector is not None:
            self._close_records(self._collector, code)
        if self._place.is_elsewhere:  # the launcher has the marks of all hosts
            return
        with suppress(OSError):  # the run has ended, and its disk may be gone
            applied = {path.name for path in self._applied.glob("*")}
            for each in self._overrides:
                if each.is_loader_argument and each.mark not in applied:
                    print_status(f"{each} was applied to no DataLoader")

    def _close_records(self, collector: RestartedSidecar, exit_code: int | None) -> None:
        # Imported after the job has ended, as little as possible before the script's first line.
        import sqlite3

        from headrace.records.collector import EXIT_CODE, LEAVES_STORE, Collector

        # Of the job's ranks those elsewhere are some only.
        last = {LEAVES_STORE: True, EXIT_CODE: None if self._place.is_elsewhere else exit_code}
        code = collector.end(last, patience_s=_CLOSE_S, kills=False)
        if code is None:
            print_status(f"the records in {self._records} are not closed yet")
        if code != 0 or self._place.is_elsewhere:  # it has said why; or its rows are sent
            return
        try:
            Collector(self._records, socket.gethostname()).close()
        except (HeadraceError, OSError, sqlite3.Error) as error:
            print_status(f"the records in {self._records}: {error}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAssignment:
    """A host's part in the job."""

    spec: Mapping[str, Any]  # the job, as JSON of a `JobSpec`, with paths as they are on this host
    name: str  # the name of the host's node
    prefix: str  # the prefix of output lines, `{rank}` in the place of the rank
    restarts: int  # how often the job's ranks were started before
    hosts: int  # how many hosts have ranks
    number: int  # this host's index among them, or among all hosts where it has none
    address: str
    master_address: str  # the address of host 0
    master_port: int  # a free port of host 0
    # The job's hosts, as JSON of a `HostLayout`; None: no platform contract
    plan: str | None = None
    host: str = ""
    cores: int = 0
    devices: int = 0
    # Ranks per host of an emulated machine type; None: as the command line says
    ranks: int | None = None
    sync_name: str = "host"  # the name under which this host's checkpoints are synced
    all_sync_names: tuple[str, ...] = ()  # those names of all hosts
    # This host, which shares no disk with the launcher, uploads its part of the output, for the
    # launcher to merge
    sends_part: bool = False
    # This host in the attempt's records; None: the launcher's machine, which records all of its own
    place: Mapping[str, Any] | None = None

    def to_json(self) -> str:
        """Return a text that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, file: str) -> HostAssignment:
        """Return the assignment in a file, whose path stands in an argument list in its place."""
        return cls.from_json(Path(file).read_text(encoding="utf-8"))

    @classmethod
    def from_json(cls, text: str) -> HostAssignment:
        """Return the assignment of a `to_json` text."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields)

    def apply(self, args: argparse.Namespace) -> None:
        """Set torchrun's rendezvous with the other hosts; the driver does the restarts."""
        args.nnodes = str(self.hosts)
        args.node_rank = self.number
        args.local_addr = self.address if self.hosts > 1 else None
        # Ranks of one host need no store that other hosts can reach.
        args.master_addr = self.master_address if self.hosts > 1 else "127.0.0.1"
        args.master_port = self.master_port
        args.max_restarts = 0
        if self.ranks is not None:
            args.nproc_per_node = str(self.ranks)
        args.log_dir = None  # the driver gathers the logs of all hosts
        # PET_* variables of the host may set these.
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "static", "", "none"
        args.standalone = False


READY, REFUSED = "ready", "refused"
"""The keys of a host's messages: it may start, or the reason why it cannot."""


def wait_at_start_barrier(announce_fd: int, go_fd: int) -> None:
    """Report that this host is ready, and return once all hosts are.

    `go_fd` is the pipe from which a byte is read once all hosts are ready. Raises LaunchError (the
    agent has ended), SystemExit (on ctrl-C: no script has started, so there is nothing to wait
    for).
    """
    os.write(announce_fd, json.dumps({READY: True}).encode() + b"\n")
    try:
        go = os.read(go_fd, 1)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    os.close(go_fd)
    if not go:
        raise LaunchError("The agent of this host has ended; look at what the launcher said.")


def announce_refusal(announce_fd: int, error: HeadraceError) -> None:
    """Report to the launcher why this host cannot start."""
    os.write(announce_fd, json.dumps({REFUSED: str(error)}).encode() + b"\n")


def refusal_messages(refusals: Iterable[tuple[str, str]], hosts: int) -> list[str]:
    """Return one message for each reason why hosts cannot start, of pairs of host name and reason.

    A reason that all `hosts` have is printed without their names.
    """
    by_reason: dict[str, list[str]] = {}
    for host, reason in refusals:
        by_reason.setdefault(reason, []).append(host)
    return [
        reason if len(names) == hosts else f"{', '.join(names)}: {reason}"
        for reason, names in by_reason.items()
    ]


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
        self._uploading = threading.Lock()
        self._is_uploaded: bool | None = None  # None: not known yet
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
        # Python's faulthandler is on, so that a crash in native code leaves the Python stack.
        crashes = {env.FAULT_HANDLER.name: env.FAULT_HANDLER.get() or "1"}
        environment = {**crashes, **self.script_env.environment, **self._sync.environment()}
        if self.record is not None:
            self._recording = self.record()
        self._sync.start()
        if self._recording is None:
            return dict(environment)
        return join_environments(environment, self._recording.environment())

    def verdict(self, code: int) -> int:
        """Return the job's exit code for the script's: a failed channel fails the job."""
        return self.script_env.verdict(code)

    def finish(self, end: ScriptEnd) -> int:
        """Write the platform's failure file, close the records, and upload the last files.

        Returns the job's exit code: a job whose files are lost, or not all uploaded, fails.
        """
        # The file that says so is uploaded.
        variables = {**env.whole_environment(), **self.script_env.environment}
        traceback = redact_traceback(hide_variables(end.traceback, variables))
        command = redact([hide_variables(each, variables) for each in end.command])
        self.script_env.note_end(end.code, list(command), traceback)
        if self._recording is not None:
            self._recording.finish(end.code)
        return end.code if self.finish_uploads(clean=end.is_clean) else end.code or UPLOAD_FAILED

    def finish_uploads(self, *, clean: bool) -> bool:
        """Upload the last files; return whether all are uploaded, and none was written elsewhere.

        After a stop signal two threads ask for it: the later one waits for what the first one does,
        as its own end would end the process. `clean`: no rank was killed, possibly while it wrote a
        file.
        """
        with self._uploading:
            if self._is_uploaded is None:
                is_synced = self._sync is None or self._sync.finish(clean=clean)
                is_lost = self.script_env.has_lost_files()
                self._is_uploaded = self.output.finish() and is_synced and not is_lost
            return self._is_uploaded


def single_host_run(
    job: JobSpec, script: str, folder: RunFolder, attempt: Attempt, *,
    distribution: Distribution | None, count_devices: Callable[[], int], sync_names: SyncNames,
) -> HostRun:  # fmt: skip
    """Install the job's requirements, and return its run on this host.

    Without a distribution the script runs once. Devices are counted only where the contract needs
    their number. `sync_names`: other hosts that have ranks of the job have launchers of their own.
    Raises UsageError (there is no such requirements file, no contract for the output path, or an
    existing job that a flag contradicts), LaunchError (the installation failed).
    """
    if job.contract.has_platform:  # what its job refuses, before anything is installed or reserved
        find_existing_job(job.contract, job.sync)
    install_requirements(job.contract, job.environment, folder, attempt)
    run = folder.path

    return HostRun(
        build_environment=lambda: single_host_environment(
            job, script, folder=run, distribution=distribution, count_devices=count_devices
        ),
        make_sync=lambda script_env: HostSync(job.sync, script_env, run, sync_names),
        output=OutputUpload(job.sync, job.contract, run),
        record=lambda: Recording(folder, HostPlace(attempt=attempt.number), job.recording),
    )


def cluster_host_run(job: JobSpec, script: str, assignment: HostAssignment) -> HostRun:
    """Return the run of a job on one of its hosts; the driver records those on its machine."""
    run = Path(env.RUN_DIR.get() or ".")
    plan = None if assignment.plan is None else HostLayout.from_json(assignment.plan)
    return HostRun(
        build_environment=lambda: host_environment(
            job, script, plan, assignment.host, folder=run, devices=assignment.devices,
            cores=assignment.cores or None,
        ),
        make_sync=lambda script_env: HostSync(
            job.sync, script_env, run,
            SyncNames(own=assignment.sync_name, all=assignment.all_sync_names),
        ),
        output=host_output_upload(job.sync, job.contract, assignment),
        record=_recording_elsewhere(job, assignment, run),
    )  # fmt: skip


def _recording_elsewhere(
    job: JobSpec, assignment: HostAssignment, run: Path
) -> Callable[[], Recording] | None:
    """Return what begins the recording of a host that is not the driver's; None: it is."""
    if assignment.place is None:
        return None
    place = HostPlace(**assignment.place)
    return lambda: Recording(RunFolder(run), place, job.recording)
