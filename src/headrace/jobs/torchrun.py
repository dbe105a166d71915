"""The process in which torchrun runs the ranks of this host.

`headrace run` starts it as `python -m headrace.jobs.torchrun --parent PID --announce FD --request
FD --`, and it ends with `headrace run` (jobs/torchrun_process.py). It reads its job as one line of
JSON, and announces the run folder and the end of the ranks by a line each. It exits with 2 for
wrong flags, with the code of the first failing rank, with 128 + n where signal n stopped it, and
otherwise with 0. With `--engine ray` it is the driver of a cluster, and each host of the cluster
runs one such process for its own ranks.

Where this host's ranks end before those of other hosts, torchrun waits for those up to five
minutes, in a call during which no Python signal handler runs: then a thread ends the process.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

if __name__ == "__main__":
    gc.disable()  # the collector would look through torch several times as it is imported

import torch
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from headrace.core import env
from headrace.core.console import print_status, write_status
from headrace.core.errors import HeadraceError, LaunchError, UsageError
from headrace.core.process.parent_death import die_with_parent, read_wrapper_arguments
from headrace.core.process.process_groups import RankProcessGroups
from headrace.core.process.sidecar import sidecar_pids
from headrace.core.process.supervision import STOP_SIGNALS, exit_code_of, was_killed
from headrace.jobs.environment.script_environment import ScriptEnvironment
from headrace.jobs.failure import (
    RankFailure,
    TimeLimit,
    failure_message,
    first_failure,
    last_write_s,
)
from headrace.jobs.host_run import (
    HostAssignment,
    HostRun,
    ScriptEnd,
    announce_refusal,
    cluster_host_run,
    single_host_run,
    wait_at_start_barrier,
)
from headrace.jobs.local_rendezvous import use_loopback_for_collectives
from headrace.jobs.output import LogFollower
from headrace.jobs.spec import JobSpec
from headrace.jobs.sync.host_sync import extra_grace_s
from headrace.jobs.torchrun_args import (
    TorchrunJob,
    parse_torchrun_flags,
    sync_names,
    threads_per_rank,
    tie_ranks_to_torchrun,
    torchrun_job,
    use_local_rendezvous,
)
from headrace.jobs.tracking import begin_tracking, check_experiment
from headrace.platforms.instance_groups import recorded_groups
from headrace.records.redaction import redact_text
from headrace.records.run_folder import Attempt, RunFolder, open_run_folder

_POLL_S = 0.05
_IDLE_BEFORE_EXIT_S = 2.0  # in which torchrun, if it sees the signal, ends by itself


def exit_on_stop_signal(first: Callable[[], object], code: Callable[[int], int]) -> None:
    """Have a stop signal end this process, once it has no children left, after calling `first`.

    Children that serve channels do not count either: they end with this process. `code` returns
    this process's exit code for a signal's, 128 + n.
    """
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(write_fd, False)
    # The signal handler in C writes to it, whatever the main thread is busy with.
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    threading.Thread(
        target=_wait_and_exit, args=[read_fd, first, code], name="leaving", daemon=True
    ).start()


def _wait_and_exit(read_fd: int, first: Callable[[], object], code: Callable[[int], int]) -> None:
    while (number := os.read(read_fd, 1)[0]) not in STOP_SIGNALS:
        pass
    alone_s = 0.0
    while alone_s < _IDLE_BEFORE_EXIT_S:
        time.sleep(_POLL_S)
        alone_s = 0.0 if _has_ranks() else alone_s + _POLL_S
    first()
    os._exit(code(exit_code_of(-number)))


def _has_ranks() -> bool:
    """Whether this process has children besides its sidecars."""
    try:
        tasks = Path("/proc/self/task").iterdir()
        children = {int(pid) for task in tasks for pid in (task / "children").read_text().split()}
    except OSError:  # a thread has ended, or the kernel lacks this: torchrun decides
        return True
    return bool(children - sidecar_pids())


_ENDED = json.dumps({"ended": True}).encode() + b"\n"
_CLUSTERS_EXTRA_S = 30  # to end agents and emulated hosts


def main(arguments: Sequence[str]) -> int:
    """Run a job under torchrun and return the exit code."""
    flags, _ = read_wrapper_arguments(arguments)
    announce_fd = int(flags["announce"])
    die_with_parent(int(flags["parent"]))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        if "assignment" in flags:
            return _run_as_cluster_host(flags, announce_fd)
        with os.fdopen(int(flags["request"]), "rb") as pipe:
            line = pipe.readline()
        if not line:  # the parent has no job for this process
            return 0
        request = json.loads(line)
        job = parse_torchrun_flags(request["argv"])
        if request["run_dir"] is not None:  # it takes precedence over the command line
            run = replace(job.spec.run, run_dir=request["run_dir"], name=None)
            job = replace(job, spec=replace(job.spec, run=run))
        folder, attempt = _start_attempt(job, request["argv"], announce_fd)
        limit = TimeLimit(
            job.spec.environment.max_run_s, launcher=int(flags["parent"]), folder=folder,
            attempt=attempt.number,
        )  # fmt: skip
        if job.cluster is not None:
            from headrace.jobs.hosts.driver import run_on_cluster

            return run_on_cluster(job, job.cluster, folder, attempt, limit.cancel)

        def ended() -> None:
            limit.cancel()  # a job that is closing its records is over
            os.write(announce_fd, _ENDED)

        return _run_on_this_host(job, folder, attempt, ended)
    except HeadraceError as error:
        if "assignment" in flags:
            announce_refusal(announce_fd, error)
        else:
            print_status(redact_text(str(error)))
        return error.exit_code


def _start_attempt(
    job: TorchrunJob, argv: Sequence[str], announce_fd: int
) -> tuple[RunFolder, Attempt]:
    run = job.spec.run
    folder = open_run_folder(
        run_dir=run.run_dir, name=run.name, script=job.script, runs_dir=run.runs_dir
    )
    check_experiment(folder, run)
    attempt = folder.start_attempt(
        command=["headrace", "run", *argv],
        argv=_script_words(job),
        world_size=job.world_size,
        launcher=os.getppid(),
        groups=recorded_groups(
            job.spec.hosts.groups, None if job.cluster is None else job.cluster.offload
        ),
    )
    begin_tracking(folder, attempt, run, job.spec.environment.environment)
    announcement = {
        "run_dir": str(folder.path),
        "attempt": attempt.number,
        "shutdown_s": job.shutdown_s
        + (_CLUSTERS_EXTRA_S if job.cluster else 0)
        + extra_grace_s(job.spec.sync),
    }
    os.write(announce_fd, json.dumps(announcement).encode() + b"\n")
    os.set_inheritable(announce_fd, False)
    env.RUN_DIR.set(str(folder.path))
    print_status(f"run folder {folder.path}")
    if other := folder.other_job(attempt):
        print_status(other)
    return folder, attempt


def _script_words(job: TorchrunJob) -> list[str]:
    return [job.script, *job.spec.script.arguments]


def _run_on_this_host(
    job: TorchrunJob, folder: RunFolder, attempt: Attempt, ended: Callable[[], None]
) -> int:
    words = _script_words(job)
    run = single_host_run(
        job.spec, job.script, folder, attempt, distribution=job.distribution,
        count_devices=torch.accelerator.device_count,
        sync_names=sync_names(job.args),
    )  # fmt: skip
    run.prepare()
    env.change(run.start())
    logs = folder.logs(attempt.number)
    return _run_to_the_end(
        run, words, lambda report: _run(job, logs, report, run.script_env),
        lambda failure: write_status(failure.message),
        ended=ended,
    )  # fmt: skip


def _run_to_the_end(
    run: HostRun, words: Sequence[str], ranks: Callable[[Callable[[_Failed], None]], int],
    report: Callable[[_Failed], object], *, ended: Callable[[], None] = lambda: None,
) -> int:  # fmt: skip
    """Run a host's ranks, finish the run, and return the exit code."""
    message = ""

    def note(failure: _Failed) -> None:
        nonlocal message
        message = failure.message
        report(failure)

    code = LaunchError.exit_code
    try:
        code = run.verdict(ranks(note))
    finally:
        _ignore_signals()  # the exit code is known: a late signal must not change it
        ended()
        end = ScriptEnd(code=code, command=words, traceback=message, is_clean=not was_killed(code))
        code = run.finish(end)
    return code


def _ignore_signals() -> None:
    for stopping in STOP_SIGNALS:
        signal.signal(stopping, signal.SIG_IGN)


def _run_as_cluster_host(flags: Mapping[str, str], announce_fd: int) -> int:
    """Run the ranks of this host of a cluster; the driver prints their failure."""
    assignment, logs = HostAssignment.read(flags["assignment"]), Path(flags["logs"])
    job = torchrun_job(JobSpec.from_json(assignment.spec))
    job = replace(job, ranks_here=assignment.ranks or job.ranks_here)
    assignment.apply(job.args)
    logs.mkdir(parents=True, exist_ok=True)

    def report(failure: _Failed) -> None:
        announced = {
            "first": asdict(failure.first), "message": failure.message, "logs": str(logs),
        }  # fmt: skip
        os.write(announce_fd, json.dumps({"failure": announced}).encode() + b"\n")

    words = _script_words(job)
    run = cluster_host_run(job.spec, job.script, assignment)
    exit_on_stop_signal(lambda: run.finish_uploads(clean=True), run.verdict)
    run.prepare()
    wait_at_start_barrier(announce_fd, int(flags["go"]))
    env.change(run.start())
    return _run_to_the_end(
        run, words, lambda note: _run(job, logs, note, run.script_env, assignment), report
    )


def _run(
    job: TorchrunJob,
    logs_folder: Path,
    report: Callable[[_Failed], None],
    script_env: ScriptEnvironment,
    assignment: HostAssignment | None = None,
) -> int:
    args = job.args
    # Unless the user names a folder; by itself torchrun would create a temporary one.
    args.log_dir = args.log_dir or str(logs_folder)
    restarts = assignment.restarts if assignment else 0
    _choose_threads(job)
    _choose_rendezvous(job)
    leftovers = RankProcessGroups()
    tie_ranks_to_torchrun(
        args, script_env, leftovers.pid_pipes, assignment.restarts if assignment else None
    )
    try:
        config, entrypoint, arguments = torchrun.config_from_args(args)
    except (ValueError, AssertionError, OSError) as error:
        raise UsageError(f"torchrun cannot use these flags: {error}.") from error
    logs = None
    if not job.keeps_own_logs:
        shown = frozenset(map(int, filter(None, args.local_ranks_filter.split(","))))
        prefix = assignment.prefix if assignment else "rank {rank}" if job.world_size > 1 else None
        files = RankLogFiles(Path(args.log_dir), restarts)
        logs = RunLogs(files, prefix=prefix, shown=shown or None)
        config.logs_specs = logs
    try:
        _launch(config, entrypoint, arguments, leftovers, RankLogFiles(logs_folder, restarts))
    except ChildFailedError as error:
        _ignore_signals()  # a late signal must not prevent the report
        failed = _failed(error, logs)
        if logs is not None:
            logs.close()  # the ranks' output is shown before the report
        report(failed)
        return exit_code_of(failed.first.returncode)
    except SignalException as error:
        return 128 + error.sigval
    # KeyError, AssertionError: a flag whose value torch has not checked, --event-log-handler say.
    except (RuntimeError, ValueError, OSError, KeyError, AssertionError) as error:
        raise LaunchError(
            f"torchrun could not run the job: {type(error).__name__}: {error}. Check the "
            "rendezvous flags (--rdzv-endpoint, --master-addr, --master-port) and that the hosts "
            "reach each other."
        ) from error
    finally:
        if logs is not None:
            logs.close()
    return 0


def _launch(
    config: LaunchConfig,
    entrypoint: Callable[..., Any] | str,
    arguments: Sequence[str],
    leftovers: RankProcessGroups,
    files: RankLogFiles,
) -> None:
    assert config.logs_specs is not None
    config.logs_specs = CleanRestartLogs(config.logs_specs, leftovers, files)
    try:
        elastic_launch(config=config, entrypoint=entrypoint)(*arguments)
    except BaseException:
        # Only on failure: what successful ranks leave running is intended.
        leftovers.end()
        raise
    finally:
        leftovers.release()


def _choose_threads(job: TorchrunJob) -> None:
    # torchrun's default is one thread per rank, with a long warning.
    if job.ranks_here < 2 or env.OMP_NUM_THREADS.get() is not None:
        return
    threads = threads_per_rank(job.ranks_here)
    env.OMP_NUM_THREADS.set(str(threads))
    print_status(
        f"OMP_NUM_THREADS={threads} for each of {job.ranks_here} ranks (this host's "
        "cores shared among them); set it yourself to choose otherwise"
    )


def _choose_rendezvous(job: TorchrunJob) -> None:
    args = job.args
    use_local_rendezvous(args)
    fewest_hosts, most_hosts = torchrun.parse_min_max_nnodes(args.nnodes)
    if most_hosts == 1 and job.ranks_here > 1:
        use_loopback_for_collectives()
    # torchrun's agent keeps one store for all restarts, in which new ranks may find the addresses
    # of the dead ones and hang or fail (pytorch issue 135712; measured with gloo in 2.13). With
    # a store in rank 0 every restart begins with an empty one; the local rendezvous does so anyway.
    may_restart = args.max_restarts > 0 or fewest_hosts != most_hosts
    if most_hosts > 1 and may_restart and env.UNSHARED_STORE.get() is None:
        env.UNSHARED_STORE.set("1")
    if args.master_port is None:
        args.master_port = 29500


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    first: RankFailure
    message: str


def _failed(error: ChildFailedError, logs: RunLogs | None) -> _Failed:
    first = first_failure(
        [
            RankFailure(
                rank=rank,
                returncode=failure.exitcode,
                seen_s=failure.timestamp,
                last_words_s=last_write_s(logs.path(rank, "stderr")) if logs else 0.0,
            )
            for rank, failure in error.failures.items()
        ]
    )
    message = failure_message(
        first,
        total=len(error.failures),
        log=logs.path(first.rank, "stderr") if logs else None,
        traceback=_recorded_traceback(error.failures[first.rank]),
    )
    return _Failed(first=first, message=message)


def _recorded_traceback(failure: ProcessFailure) -> str | None:
    # Scripts decorated with torch's @record leave their traceback in a file of their own.
    message = failure.error_file_data.get("message")
    if not isinstance(message, dict):
        return None
    recorded = message.get("extraInfo", {}).get("py_callstack")
    return recorded if isinstance(recorded, str) else None


StreamName = Literal["stdout", "stderr"]


class RankLogFiles:
    """The log files of ranks in an attempt's folder; of restarts in its folders `restart-1`, ..."""

    def __init__(self, folder: Path, restarts: int) -> None:
        self.folder = folder
        self._current = folder
        self._starts = restarts

    def path(self, rank: int, stream: StreamName | Literal["error.json"]) -> Path:
        """Return a rank's file of the latest start."""
        return self._current / f"rank-{rank}.{stream}"

    def begin_start(self) -> None:
        """Go on with the folder of the next start; raises OSError where it cannot be made."""
        # Not TORCHELASTIC_RESTART_COUNT: when a host joins or leaves, ranks are restarted without
        # counting that, and torchrun truncates the files that it is given.
        if self._starts > 0:
            self._current = self.folder / f"restart-{self._starts}"
        self._starts += 1
        self._current.mkdir(exist_ok=True)

    def link(self, logs: LogsDest, ranks: Mapping[int, int]) -> None:
        """Have the files of the next start, by local rank, here as well: as links, if elsewhere.

        So what reads a run's logs finds them whatever torchrun's flags say. `ranks` has the rank
        of each local one. A disk without room costs the links, never the run.
        """
        streams: dict[StreamName, dict[int, str]] = {"stdout": logs.stdouts, "stderr": logs.stderrs}
        with suppress(OSError):
            self.begin_start()
            for stream, files in streams.items():
                for local_rank, rank in ranks.items():
                    self._link(self.path(rank, stream), files.get(local_rank, ""))

    def _link(self, place: Path, file: str) -> None:
        """Make a link to a log that torchrun is about to begin; "" is the terminal."""
        target = Path(file).absolute()
        if not file or target.resolve() == place.resolve():
            return
        if target.exists() and not target.is_file():  # /dev/null
            return
        target.write_bytes(b"")  # it may be an earlier run's, which is none of this one's output
        place.unlink(missing_ok=True)
        if target.is_relative_to(self.folder):  # the run folder may be moved
            target = Path(os.path.relpath(target, place.parent))
        place.symlink_to(target)


class RunLogs(LogsSpecs):
    """The log files of a run for torchrun, shown on the terminal as they grow.

    Shown lines have the prefix, with `{rank}` in the place of the rank; `shown` has local ranks.
    """

    def __init__(
        self, files: RankLogFiles, *, prefix: str | None, shown: frozenset[int] | None
    ) -> None:
        super().__init__(log_dir=str(files.folder))
        self._files = files
        self._prefix = prefix
        self._shown = shown
        self._follower = LogFollower()

    @property
    def root_log_dir(self) -> str:
        """The attempt's logs folder."""
        return str(self._files.folder)

    def path(self, rank: int, stream: StreamName) -> Path:
        """Return a rank's log file of the latest restart."""
        return self._files.path(rank, stream)

    def close(self) -> None:
        """Show the rest of every file, and stop."""
        self._follower.close()

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the files of the ranks that are about to start; torchrun calls this.

        The path of its error file is set in each local rank's environment.
        """
        self._follower.finish_files()
        self._files.begin_start()
        files: dict[str, Any] = {"stdouts": {}, "stderrs": {}, "error_files": {}}
        for local_rank, environment in envs.items():
            rank = int(environment["RANK"])
            error_file = str(self._files.path(rank, "error.json"))
            environment["TORCHELASTIC_ERROR_FILE"] = error_file
            files["error_files"][local_rank] = error_file
            files["stdouts"][local_rank] = str(self.path(rank, "stdout"))
            files["stderrs"][local_rank] = str(self.path(rank, "stderr"))
            if self._shown is None or local_rank in self._shown:
                self._show(rank)
        return LogsDest(**files)

    def _show(self, rank: int) -> None:
        prefix = f"[{self._prefix.format(rank=rank)}] " if self._prefix else ""
        self._follower.follow(self.path(rank, "stdout"), prefix, sys.stdout.buffer)
        self._follower.follow(self.path(rank, "stderr"), prefix, sys.stderr.buffer)


class CleanRestartLogs(LogsSpecs):
    """Log files that also end the leftover processes of earlier ranks before each restart.

    The run's own `files` lead to them.
    """

    def __init__(self, logs: LogsSpecs, leftovers: RankProcessGroups, files: RankLogFiles) -> None:
        super().__init__(log_dir=logs.root_log_dir)
        self._logs = logs
        self._leftovers = leftovers
        self._files = files

    @property
    def root_log_dir(self) -> str:
        """The folder of the logs."""
        return self._logs.root_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the files of the ranks that are about to start; torchrun calls this.

        By then it has stopped the earlier ranks.
        """
        self._leftovers.end()
        logs = self._logs.reify(envs)
        self._files.link(logs, {local: int(each["RANK"]) for local, each in envs.items()})
        return logs


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:  # before ranks run; later torchrun handles it
        code = exit_code_of(-signal.SIGINT)
    gc.freeze()  # the collections at the end would look through all of torch: a third of a second
    sys.exit(code)
