"""The process in which torchrun runs: its own parser, its own agent, the first failure's code.

`python -m headrace.launch.torchrun --parent PID --announce FD [--run-dir DIR] -- argv...` is
started by `headrace run`, and ends with it. It writes one JSON line to FD once the job's folder
exists, and exits with 2 for wrong use, with the first failing rank's code where a rank failed, with
128 + n where signal n stopped it, and else with 0. With `--engine ray` it is the driver of a
cluster, and on each host of the cluster one runs as a member, for that host's ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from headrace.core import env
from headrace.core.errors import HeadraceError, LaunchError, UsageError
from headrace.core.lifetime import die_with_parent
from headrace.launch.failure import RankFailure, failure_message, first_failure, last_write_s
from headrace.launch.flags import TorchrunJob, parse_torchrun_flags, threads_per_rank, tie_ranks
from headrace.launch.hosts.member import Member
from headrace.launch.hosts.together import announce_refusal, begin_together
from headrace.launch.leaving import leave_when_asked
from headrace.launch.leftovers import Leftovers
from headrace.launch.logs import CleanStarts, RunLogs
from headrace.launch.recording import Recording
from headrace.launch.requirements.local import install_here
from headrace.launch.run_limit import RunLimit
from headrace.launch.site.host_site import host_site, only_host_site, plain_site
from headrace.launch.site.site_plan import SitePlan
from headrace.launch.site.sites import Site
from headrace.launch.site.surroundings import with_surroundings
from headrace.launch.supervise import STOPPING, exit_code_of, was_killed
from headrace.launch.told import tell
from headrace.launch.uploads.host_uploads import HostUploads, extra_grace_s
from headrace.launch.uploads.job_output import JobOutput, finished_on_error, member_output
from headrace.records.run_folder import Attempt, RunFolder, open_run_folder

_CLUSTERS_EXTRA_S = 30  # its agents and emulated hosts are ended, too


def main(arguments: Sequence[str]) -> int:
    """Run a job under torchrun and return the exit code."""
    end = arguments.index("--")
    told = dict(zip(arguments[:end:2], arguments[1:end:2], strict=True))
    announce_fd, argv = int(told["--announce"]), arguments[end + 1 :]
    die_with_parent(int(told["--parent"]))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        job = parse_torchrun_flags(argv)
        if "--member" in told:
            return _run_member(job, told, announce_fd)
        if "--run-dir" in told:  # whatever the command line says of it
            job.args.run_dir, job.args.name = told["--run-dir"], None
        folder, attempt = _begin(job, argv, announce_fd)
        RunLimit(
            job.around.max_run_s, launcher=int(told["--parent"]), folder=folder,
            attempt=attempt.number,
        )  # fmt: skip
        if job.cluster is not None:
            from headrace.launch.hosts.on_cluster import run_on_cluster

            return run_on_cluster(job, job.cluster, argv, folder, attempt)
        return _run_here(job, folder, attempt)
    except HeadraceError as error:
        if "--member" in told:
            announce_refusal(announce_fd, error)
        else:
            tell(f"headrace: {error}\n")
        return error.exit_code


def _begin(job: TorchrunJob, argv: Sequence[str], announce_fd: int) -> tuple[RunFolder, Attempt]:
    args = job.args
    folder = open_run_folder(
        run_dir=args.run_dir, name=args.name, script=args.training_script, runs_dir=args.runs_dir
    )
    attempt = folder.start_attempt(
        command=["headrace", "run", *argv],
        argv=[args.training_script, *args.training_script_args],
        world_size=job.world_size,
        launcher=os.getppid(),
    )
    announcement = {
        "run_dir": str(folder.path),
        "attempt": attempt.number,
        "shutdown_s": job.shutdown_s
        + (_CLUSTERS_EXTRA_S if job.cluster else 0)
        + extra_grace_s(job.uploads),
    }
    os.write(announce_fd, json.dumps(announcement).encode() + b"\n")
    os.close(announce_fd)
    env.RUN_DIR.set(str(folder.path))
    tell(f"headrace: run folder {folder.path}\n")
    return folder, attempt


def _run_here(job: TorchrunJob, folder: RunFolder, attempt: Attempt) -> int:
    script = [job.args.training_script, *job.args.training_script_args]
    install_here(job.contract, job.around, folder, attempt)
    output = JobOutput(job.uploads, job.contract, folder.path)
    output.begin()  # first: another job that writes there is known before anything is copied
    with finished_on_error(output):
        site = _site(job, folder)
        uploads = _uploads(job, site, folder.path)
        uploads.fetch()
    env.change({**site.environment, **uploads.environment()})
    recording = Recording(folder, attempt, job.options)
    uploads.start()
    env.change(recording.environment())
    given = job.args.log_dir
    told = ""

    def report(failure: _Failed) -> None:
        nonlocal told
        told = failure.message
        tell(told)

    code = LaunchError.exit_code
    try:
        logs = Path(given) if given else folder.logs(attempt.number)
        code = site.verdict(_run(job, logs, report, site))
    finally:
        _ignore_signals()  # how the job ended is known: one that comes now must not change that
        recording.finish()
        site.note_end(code, script, told)
        uploads.finish(clean=not was_killed(code))
        output.finish()
    return code


def _uploads(job: TorchrunJob, site: Site, run: Path) -> HostUploads:
    if torchrun.parse_min_max_nnodes(job.args.nnodes)[1] == 1:
        return HostUploads(job.uploads, site, run)
    # torchrun's own flags name the other hosts, each of which runs a launcher of its own.
    return HostUploads(job.uploads, site, run, kept_as=socket.gethostname(), kept_by=None)


def _site(job: TorchrunJob, folder: RunFolder) -> Site:
    site = only_host_site(
        job.contract,
        script=job.args.training_script,
        is_module=job.args.module,
        folder=folder.path,
        distribution=job.distribution,
        count_devices=torch.accelerator.device_count,
        training=job.args.group[0].partition("=")[0] if job.args.group else None,
        arguments=job.args.training_script_args,
        environment=job.around.environment,
    )
    return with_surroundings(site, job.around, folder.path)


def _ignore_signals() -> None:
    for stopping in STOPPING:
        signal.signal(stopping, signal.SIG_IGN)


def _run_member(job: TorchrunJob, flags: Mapping[str, str], announce_fd: int) -> int:
    """Run the ranks of this host of a cluster; a failure is for the driver to tell."""
    member, logs = Member.from_json(flags["--member"]), Path(flags["--logs"])
    job = replace(job, ranks_here=member.ranks or job.ranks_here)
    member.apply(job.args)
    logs.mkdir(parents=True, exist_ok=True)

    told = ""

    def report(failure: _Failed) -> None:
        nonlocal told
        told = failure.message
        announced = {"first": asdict(failure.first), "message": told, "logs": str(logs)}
        os.write(announce_fd, json.dumps({"failure": announced}).encode() + b"\n")

    run = Path(env.RUN_DIR.get() or ".")
    site = with_surroundings(_member_site(job, member), job.around, run)
    uploads = HostUploads(job.uploads, site, run, kept_as=member.kept_as, kept_by=member.kept_by)
    output = member_output(job.uploads, job.contract, member)

    def finish(*, clean: bool) -> None:
        uploads.finish(clean=clean)
        output.finish()

    leave_when_asked(lambda: uploads.pids | output.pids, lambda: finish(clean=True), site.verdict)
    output.begin()
    uploads.fetch()
    begin_together(announce_fd, int(flags["--go"]))
    env.change({**site.environment, **uploads.environment()})
    uploads.start()
    script = [job.args.training_script, *job.args.training_script_args]
    code = LaunchError.exit_code
    try:
        code = site.verdict(_run(job, logs, report, site, member))
    finally:
        _ignore_signals()
        site.note_end(code, script, told)
        finish(clean=not was_killed(code))
    return code


def _member_site(job: TorchrunJob, member: Member) -> Site:
    if member.plan is None:
        return plain_site(job.contract)
    return host_site(
        job.contract,
        SitePlan.from_json(member.plan),
        member.host,
        script=job.args.training_script,
        is_module=job.args.module,
        folder=Path(env.RUN_DIR.get() or "."),
        devices=member.devices,
        cores=member.cores or None,
        arguments=job.args.training_script_args,
        environment=job.around.environment,
    )


def _run(
    job: TorchrunJob,
    logs_folder: Path,
    report: Callable[[_Failed], None],
    site: Site,
    member: Member | None = None,
) -> int:
    args = job.args
    args.log_dir = str(logs_folder)  # torchrun makes a temporary folder otherwise
    _choose_threads(job)
    _keep_restarts_apart(args)
    _choose_local_rendezvous(args)
    leftovers = Leftovers()
    tie_ranks(args, site, leftovers.told_through, member.restarts if member else None)
    try:
        config, entrypoint, arguments = torchrun.config_from_args(args)
    except (ValueError, AssertionError, OSError) as error:
        raise UsageError(f"torchrun cannot use these flags: {error}.") from error
    logs = None
    if not job.keeps_own_logs:
        shown = frozenset(map(int, filter(None, args.local_ranks_filter.split(","))))
        prefix = member.prefix if member else "rank {rank}" if job.world_size > 1 else None
        restarts = member.restarts if member else 0
        logs = RunLogs(logs_folder, prefix=prefix, shown=shown or None, restarts=restarts)
        config.logs_specs = logs
    try:
        _launch(config, entrypoint, arguments, leftovers)
    except ChildFailedError as error:
        _ignore_signals()  # what failed is to be told, whatever comes
        failed = _failed(error, logs)
        if logs is not None:
            logs.close()  # what the ranks said comes before what is said about them
        report(failed)
        return exit_code_of(failed.first.returncode)
    except SignalException as error:
        return 128 + error.sigval
    except (RuntimeError, ValueError, OSError) as error:
        raise _broken(error) from error
    finally:
        if logs is not None:
            logs.close()
    return 0


def _launch(
    config: LaunchConfig,
    entrypoint: Callable[..., Any] | str,
    arguments: Sequence[str],
    leftovers: Leftovers,
) -> None:
    assert config.logs_specs is not None
    config.logs_specs = CleanStarts(config.logs_specs, leftovers)
    try:
        elastic_launch(config=config, entrypoint=entrypoint)(*arguments)
    except BaseException:
        # Here alone: what ranks that ended well leave running, they mean to.
        leftovers.end()
        raise


def _choose_threads(job: TorchrunJob) -> None:
    # Without it torchrun gives each rank one thread, whatever the host has, and warns at length.
    if job.ranks_here < 2 or env.OMP_NUM_THREADS.get() is not None:
        return
    threads = threads_per_rank(job.ranks_here)
    env.OMP_NUM_THREADS.set(str(threads))
    tell(
        f"headrace: OMP_NUM_THREADS={threads} for each of {job.ranks_here} ranks (this host's "
        "cores shared among them); set it yourself to choose otherwise\n"
    )


def _keep_restarts_apart(args: argparse.Namespace) -> None:
    # torchrun's agent keeps one store for all restarts, in which new ranks may find the addresses
    # of the dead ones and hang or fail (pytorch issue 135712; measured with gloo in 2.13). With
    # a store in rank 0 every restart begins with an empty one.
    fewest_hosts, most_hosts = torchrun.parse_min_max_nnodes(args.nnodes)
    may_restart = args.max_restarts > 0 or fewest_hosts != most_hosts
    if may_restart and env.UNSHARED_STORE.get() is None:
        env.UNSHARED_STORE.set("1")


def _choose_local_rendezvous(args: argparse.Namespace) -> None:
    # As torch.distributed.run.run does: jobs on one host get a free port of their own.
    _, most_hosts = torchrun.parse_min_max_nnodes(args.nnodes)
    told = args.rdzv_backend != "static" or args.rdzv_endpoint or args.master_port is not None
    if args.standalone or (not told and most_hosts == 1):
        args.rdzv_backend = "c10d"
        args.rdzv_endpoint = "localhost:0"
        args.rdzv_id = str(uuid.uuid4())
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


def _broken(error: Exception) -> LaunchError:
    return LaunchError(
        f"torchrun could not run the job: {type(error).__name__}: {error}. Check the rendezvous "
        "flags (--rdzv-endpoint, --master-addr, --master-port) and that the hosts reach each other."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
