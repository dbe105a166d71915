"""The `headrace run` and `headrace resume` of one job, from command line to exit code.

A job of one process runs on this host without torchrun.
"""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import HeadraceError, LaunchError, UsageError, did_you_mean
from headrace.core.process.process_kill import run_within
from headrace.core.process.supervision import (
    DEFAULT_GRACE_S,
    exit_code_of,
    signals_blocked,
    wait_for,
)
from headrace.jobs.cli_args import check_script, direct_job, find_script
from headrace.jobs.environment.existing_job import TORCHRUN_VARIABLES
from headrace.jobs.environment.nested_torchrun import (
    LeaderMessage,
    NestedRank,
    find_nested_rank,
    run_follower,
)
from headrace.jobs.environment.script_command import script_command
from headrace.jobs.failure import TimeLimit, describe_exit, last_traceback
from headrace.jobs.host_run import HostRun, ScriptEnd, single_host_run
from headrace.jobs.job_file import with_job_file
from headrace.jobs.output import run_script
from headrace.jobs.spec import JobSpec, job_options
from headrace.jobs.sync.host_sync import SyncNames
from headrace.jobs.torchrun_process import discard_early, take_or_start
from headrace.jobs.tracking import RunSender, begin_tracking, check_experiment
from headrace.platforms.instance_groups import recorded_groups
from headrace.records.redaction import HIDDEN
from headrace.records.run_folder import Attempt, RunFolder, open_run_folder, runs_folder

if TYPE_CHECKING:
    from headrace.report.page_data import PageData


def record_end(folder: RunFolder, attempt: int, exit_code: int) -> None:
    """Record how an attempt ended, or print why that failed."""
    # A full disk or a removed run folder must not replace the script's own exit code.
    try:
        folder.end_attempt(attempt, exit_code)
    except (OSError, LaunchError) as error:
        print_status(f"that the run ended with {exit_code} cannot be written down: {error}")


def print_outcome(folder: RunFolder, attempt: int) -> PageData | None:
    """Print the verdict of an ended attempt, and the findings of the rules it was given.

    Returns the data of its page; None where nothing was recorded.
    """
    if not _has_outcome(folder, attempt):
        return None
    # Imported after the job has ended: NumPy starts threads (see `signals_blocked`).
    from headrace.jobs.verdict import print_rules, print_verdict

    data = print_verdict(folder, attempt)
    print_rules(folder, attempt)
    return data


def _has_outcome(folder: RunFolder, number: int) -> bool:
    """Whether an attempt was recorded, or was given rules."""
    if folder.records(number).exists():
        return True
    try:
        return any(each.asked.get("rules") for each in folder.attempts() if each.number == number)
    except LaunchError:  # reported with the rules
        return True


def _import_verdict(folder: RunFolder, attempt: int) -> None:
    """Import what `print_outcome` needs; in a thread, while the records are closed."""
    if _has_outcome(folder, attempt):
        gc.freeze()  # what is imported so far stays, and need not be looked at for garbage again
        # No process of the job is left to inherit it. The threads of numpy's BLAS would take 50 ms
        # of CPU as they start, and have nothing to do.
        env.OPENBLAS_NUM_THREADS.set("1")
        import_module("headrace.jobs.verdict")


def run_directly(job: JobSpec, argv: Sequence[str]) -> int:
    """Run a script and return its exit code, or 128 + a signal."""
    script = job.script.path
    if not job.script.is_module:
        script = find_script(script, job.contract.source_dir)
        check_script(script)
    if job.run.dry_run:
        from headrace.jobs.dry_run import describe_direct_job

        return describe_direct_job(job, script)
    rank = find_nested_rank()
    if rank is not None and rank.world.local_rank:
        return run_follower(job, script, rank)
    folder, attempt = _start_attempt(job, argv, script, rank)
    limit = TimeLimit(  # from here on: the copying of channels counts, as on SageMaker
        job.environment.max_run_s, launcher=os.getpid(), folder=folder, attempt=attempt.number,
        is_passed_on=False,
    )  # fmt: skip
    is_only_host = rank is None or rank.world.size == rank.world.local_size
    try:
        run = single_host_run(
            job, script, folder, attempt, distribution=None, count_devices=_count_devices,
            sync_names=SyncNames() if is_only_host else SyncNames.of_unknown_hosts(),
        )  # fmt: skip
        run.prepare()
    except HeadraceError as error:
        record_end(folder, attempt.number, error.exit_code)
        raise
    return _LocalRun(job, script, folder, attempt, limit, rank, run).to_its_end()


@dataclass
class _LocalRun:
    """One attempt of a job of one process, prepared."""

    job: JobSpec
    script: str
    folder: RunFolder
    attempt: Attempt
    limit: TimeLimit
    rank: NestedRank | None
    run: HostRun

    def __post_init__(self) -> None:
        number = self.rank.world.rank if self.rank is not None else 0
        self._had_to_stop = False
        self._sender = RunSender(self.folder, self.attempt.number)
        self._log = self.folder.logs(self.attempt.number) / f"rank-{number}.stderr"
        script = self.job.script
        self._command = script_command(
            self.script, script.arguments, self.run.script_env, is_module=script.is_module
        )

    def to_its_end(self) -> int:
        """Run the script and return the exit code."""
        number = self.attempt.number
        with signals_blocked() as blocked:
            self.limit.is_passed_on = True
            returncode = self._run_script(self.run.start(), blocked)
            code = self.run.script_env.verdict(exit_code_of(returncode))
            ended = code if self.rank is None else self.rank.verdict(code)
            record_end(self.folder, number, ended)
        # Signals are no longer blocked: from here on the user may interrupt.
        threading.Thread(target=_import_verdict, args=[self.folder, number], daemon=True).start()
        if returncode != 0:
            how = describe_exit(returncode, had_to_stop=self._had_to_stop)
            print_status(f"{self.job.script.path}: {how}; log: {self._log}")
        traceback = last_traceback(self._log) if returncode else ""
        final = self.run.finish(
            ScriptEnd(
                code=code, command=self._command, traceback=traceback, is_clean=returncode >= 0
            )
        )
        if final != code:
            record_end(self.folder, number, ended or final)
        self._sender.end(self.folder, ended or final, print_outcome(self.folder, number))
        return final

    def _run_script(
        self, environment: dict[str, str | None], blocked: frozenset[signal.Signals]
    ) -> int:
        environment[env.RUN_DIR.name] = str(self.folder.path)
        script_env = self.run.script_env
        if self.rank is not None:
            for name in TORCHRUN_VARIABLES:  # ranks keep torchrun's own rendezvous
                environment.pop(name, None)
            self._share_with_followers(self.rank, environment)
        # A script may save for minutes after a stop signal, but not after the job's time limit.
        returncode = run_script(
            self._command,
            script_env=script_env,
            environment=environment,
            log=self._log,
            blocked=blocked,
            grace_s=lambda: DEFAULT_GRACE_S if self.limit.is_over or script_env.failure() else None,
            killing=self._note_kill,
        )
        self.limit.cancel()
        return returncode

    def _note_kill(self) -> None:
        self._had_to_stop = True

    def _share_with_followers(
        self, rank: NestedRank, environment: Mapping[str, str | None]
    ) -> None:
        script_env = self.run.script_env
        leader_message = LeaderMessage(
            run_dir=str(self.folder.path), attempt=self.attempt.number, environment=environment,
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
    check_experiment(folder, job.run)
    attempt = folder.start_attempt(
        command=command,
        argv=[job.script.path, *job.script.arguments],
        world_size=ranks,
        groups=recorded_groups(job.hosts.groups, offload=None),
    )
    begin_tracking(folder, attempt, job.run, job.environment.environment)
    print_status(f"run folder {folder.path}")
    if other := folder.other_job(attempt):
        print_status(other)
    return folder, attempt


_DEVICE_FILES = (
    "nvidia[0-9]*", "nvhost*", "nvmap",  # NVIDIA: cards, Jetson
    "dxg",  # within Windows
    "kfd", "dri/renderD*",  # AMD, Intel
    "accel*", "davinci*", "hl*", "mlu*", "neuron*",
)  # fmt: skip
"""Files in /dev by which Linux shows accelerators. A host without any of them has no device, and
needs no torch to say so: its import takes one to three seconds."""


_DEVICES_S = 600.0  # where many hosts import torch from one network disk it takes minutes


def _count_devices() -> int:
    """Return this host's device count, from a child process: importing torch starts threads."""
    if not any(any(Path("/dev").glob(name)) for name in _DEVICE_FILES):
        return 0
    code = "import torch; print(torch.accelerator.device_count())"
    try:
        output = run_within([sys.executable, "-c", code], _DEVICES_S).stdout
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"torch has not counted this host's devices within {_DEVICES_S:.0f} s: does their "
            "driver answer (nvidia-smi)? --nproc-per-node with a number needs no count."
        ) from None
    return int(output) if output.strip().isdigit() else 0


_GRACE_S = 30.0  # what torchrun gives its ranks unless --shutdown-timeout says otherwise
_TORCHRUN_EXTRA_S = 10.0  # torchrun needs some time itself after its ranks have ended


def run_job(argv: Sequence[str], *, run_dir: str | None = None) -> int:
    """Run a script and return its exit code, that of the first failing rank, or 128 + a signal.

    With one process and no torchrun flag the script runs directly, and RANK is not set. Otherwise
    torchrun runs it, in a child process. Every process of the job ends when this one does.

    `argv` has torchrun's flags and ours (--run-dir, --name), the script or a job file, and the
    script's arguments; a `run_dir` takes precedence over it. Raises UsageError (wrong flags, or a
    script that cannot be run), LaunchError (the run folder is broken).
    """
    argv = with_job_file(argv)
    direct = direct_job(argv)
    if direct is None:
        described = _describe(argv) if set(argv) & set(job_options()["dry_run"].spellings) else None
        return _run_torchrun(argv, run_dir) if described is None else described
    discard_early()
    if run_dir is not None:
        direct = replace(direct, run=replace(direct.run, run_dir=run_dir, name=None))
    return run_directly(direct, argv)


def _describe(argv: Sequence[str]) -> int | None:
    """Print the dry run of a torchrun job; None: the --dry-run is among the script's arguments."""
    from headrace.jobs.dry_run import describe_torchrun_job
    from headrace.jobs.torchrun_args import parse_torchrun_flags

    job = parse_torchrun_flags(argv)
    return describe_torchrun_job(job) if job.spec.run.dry_run else None


def _run_torchrun(argv: Sequence[str], run_dir: str | None) -> int:
    process = take_or_start()
    kills: list[float] = []  # when we killed it
    senders: list[RunSender] = []

    def grace_s() -> float:
        announced = process.announced
        shutdown_s = _GRACE_S if announced is None else float(announced["shutdown_s"])
        return shutdown_s + _TORCHRUN_EXTRA_S

    def at_begin(announced: Mapping[str, Any]) -> None:
        folder = RunFolder(Path(announced["run_dir"]))
        senders.append(RunSender(folder, int(announced["attempt"])))

    def at_end(announced: Mapping[str, Any]) -> None:
        _import_verdict(RunFolder(Path(announced["run_dir"])), int(announced["attempt"]))

    with signals_blocked() as blocked:
        process.begin(argv, run_dir, at_begin, at_end)
        returncode = wait_for(
            process.child, blocked, own_session=True, grace_s=grace_s,
            killing=lambda: kills.append(time.monotonic()),
        )  # fmt: skip
        process.ended()
        announced = process.announced
        if announced is not None:
            folder, attempt = RunFolder(Path(announced["run_dir"])), int(announced["attempt"])
            record_end(folder, attempt, exit_code_of(returncode))
    if returncode < 0:
        how = describe_exit(returncode, had_to_stop=bool(kills))
        print_status(f"what ran the job was {how}")
    if announced is not None:
        data = print_outcome(folder, attempt)
        for sender in senders:
            sender.end(folder, exit_code_of(returncode), data)
    return exit_code_of(returncode)


def resume_run(run: str, runs_dir: str | None = None) -> int:
    """Run a run's last command again, from the folder where it was typed; return the exit code.

    The run is a name or a folder; for `runs_dir` see `runs_folder`. Raises UsageError (there is no
    such run, it is running, or its recorded command cannot be repeated), LaunchError (the run
    folder is broken).
    """
    path = _find(run, runs_dir)
    attempts = RunFolder(path).attempts()
    if not attempts:
        raise UsageError(f"{path} holds no attempt that could be gone on with.")
    RunFolder(path).check_free()
    last = attempts[-1]
    argv = _repeatable(path, last)
    if last.folder:
        _stand_in(path, last.folder)
    else:
        print_status(f"where {path.name} was started was not written down; it goes on from here")
    print_status(f"{path.name}, attempt {last.number + 1}: {shlex.join(last.command)}")
    # Rules and other arguments of the job hold for the new attempt, too.
    asked = {name: each for name, each in last.asked.items() if name != "profiler_updates"}
    if asked:
        env.change({env.JOB_REQUEST.name: json.dumps(asked)})
    return run_job(argv, run_dir=str(path))


def _find(run: str, runs_dir: str | None) -> Path:
    runs = runs_folder(runs_dir)
    for path in (runs / run, Path(run).expanduser()):
        if (path / "run.json").is_file():
            return path.resolve()
    there = [each.parent.name for each in sorted(runs.glob("*/run.json"))]
    meant = did_you_mean(run, there) or f" There are: {', '.join(there) or 'none'}."
    raise UsageError(f"There is no run {run} in {runs.absolute()}.{meant}")


def _repeatable(path: Path, last: Attempt) -> list[str]:
    if last.hides_secrets or any(HIDDEN in word for word in last.command):
        raise UsageError(
            f"{path.name}: its command held a secret, which was not written down: "
            f"{shlex.join(last.command)}. Type it again yourself, with --run-dir {path}; a secret "
            "in a variable of the environment need not be typed at all."
        )
    if last.command[:2] != ("headrace", "run"):
        raise UsageError(
            f"{path.name} was not started by headrace run but by {shlex.join(last.command)}: "
            "start that again."
        )
    return list(last.command[2:])


def _stand_in(path: Path, folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise UsageError(
            f"{path.name} was started in {folder}, and from there it would go on: "
            f"{error.strerror}. Bring it back, or type the command anew with --run-dir {path}."
        ) from error
