"""`headrace run`: one job on this host, from its command line to its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.core import env
from headrace.core.errors import HeadraceError, LaunchError
from headrace.core.tied import tied_command
from headrace.launch.failure import describe_end, last_traceback
from headrace.launch.host_site import only_host_site
from headrace.launch.job_file import with_job_file
from headrace.launch.own_flags import DirectJob, direct_job
from headrace.launch.recording import Recording
from headrace.launch.run_limit import RunLimit
from headrace.launch.scripts import check_script, find_script
from headrace.launch.sites import Site
from headrace.launch.streams import open_stream, resize
from headrace.launch.supervise import exit_code_of, signals_held, wait_for
from headrace.launch.surroundings import joined_environment, with_surroundings
from headrace.launch.tee import Tee, raw
from headrace.launch.told import tell
from headrace.launch.uploads.host_uploads import HostUploads
from headrace.launch.uploads.job_output import JobOutput
from headrace.records.run_folder import Attempt, RunFolder, open_run_folder

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
        return _run_torchrun(argv, run_dir)
    if run_dir is not None:
        direct = replace(direct, run_dir=run_dir, name=None)
    return _run_directly(direct, argv)


def _run_directly(job: DirectJob, argv: Sequence[str]) -> int:
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
    site = _site(job, script, folder, attempt)
    output = JobOutput(job.uploads, job.contract, folder.path)
    uploads = HostUploads(job.uploads, site, folder.path)
    output.begin()
    uploads.fetch()
    command = _command(job, script, site)
    log = folder.logs(attempt.number) / "rank-0.stderr"
    with signals_held() as held:
        recording = Recording(folder, attempt, job.options)
        uploads.start()
        streams = open_stream(sys.stdout.buffer), open_stream(sys.stderr.buffer)
        child = subprocess.Popen(
            tied_command(sys.executable, site.placed(command)),
            stdout=streams[0].written,
            stderr=streams[1].written,
            env=env.child_environment(
                joined_environment(
                    {
                        **site.environment,
                        **uploads.environment(),
                        env.RUN_DIR.name: str(folder.path),
                    },
                    recording.environment(),
                )
            ),
            cwd=site.folder,
            close_fds=False,  # what the shell opened, as by <(command), is the script's
        )
        for stream in streams:
            stream.handed_over()
        tees = (
            Tee(streams[0].source, raw(sys.stdout.buffer), log.with_name("rank-0.stdout")),
            Tee(streams[1].source, raw(sys.stderr.buffer), log),
        )
        limit = RunLimit(
            job.around.max_run_s, launcher=os.getpid(), folder=folder, attempt=attempt.number
        )
        # A script may save for minutes once it was asked to stop; not once its time is over.
        returncode = wait_for(
            child, held, own_session=False, resized=lambda: resize(streams),
            grace_s=lambda: _GRACE_S if limit.is_over else None,
        )  # fmt: skip
        limit.cancel()
        for tee in tees:
            tee.close()
        _write_down_end(folder, attempt.number, exit_code_of(returncode))
    # Signals are free again: whoever does not want to wait for this may leave.
    if returncode != 0:
        tell(f"headrace: {job.script}: {describe_end(returncode)}; log: {log}\n")
    site.note_end(exit_code_of(returncode), command, last_traceback(log) if returncode else "")
    recording.finish()
    uploads.finish(clean=returncode >= 0)
    output.finish()
    _tell_verdict(folder, attempt.number)
    return exit_code_of(returncode)


def _site(job: DirectJob, script: str, folder: RunFolder, attempt: Attempt) -> Site:
    try:
        site = only_host_site(
            job.contract, script=script, is_module=job.module, folder=folder.path,
            distribution=None, count_devices=_count_devices,
        )  # fmt: skip
        return with_surroundings(site, job.around, folder.path)
    except HeadraceError as error:
        _write_down_end(folder, attempt.number, error.exit_code)
        raise


def _checked_script(job: DirectJob) -> str:
    if job.module:
        return job.script
    script = find_script(job.script, job.contract.source_dir)
    check_script(script)
    return script


def _describe(job: DirectJob, script: str) -> int:
    from headrace.launch.dry_run import describe_direct_job

    return describe_direct_job(job, script, _count_devices())


def _command(job: DirectJob, script: str, site: Site) -> list[str]:
    python = env.PYTHON_EXEC.get() or sys.executable
    if site.folder is not None and not job.module:
        script = str(Path(script).absolute())
    return [python, "-u", *(["-m"] if job.module else []), script, *site.arguments, *job.arguments]


def _count_devices() -> int:
    """Return how many devices this host has, asked in another process: torch starts threads."""
    asked = "import torch; print(torch.accelerator.device_count())"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=False).stdout
    return int(told) if told.strip().isdigit() else 0


def _write_down_end(folder: RunFolder, attempt: int, exit_code: int) -> None:
    # A full disk, or a script that removed its runs, must not cost the script's own exit code.
    try:
        folder.end_attempt(attempt, exit_code)
    except (OSError, LaunchError) as error:
        tell(f"headrace: that the run ended with {exit_code} cannot be written down: {error}\n")


def _tell_verdict(folder: RunFolder, attempt: int) -> None:
    # Imported once the job has ended: see `signals_held` on threads, and NumPy starts some.
    from headrace.launch.verdict import tell_verdict

    tell_verdict(folder, attempt)


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
            _write_down_end(announced.folder, announced.attempt, exit_code_of(returncode))
    if returncode < 0:
        tell(f"headrace: what ran the job was {describe_end(returncode)}\n")
    if announced is not None:
        _tell_verdict(announced.folder, announced.attempt)
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
