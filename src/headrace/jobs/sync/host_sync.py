"""The sync of one host for the process that runs its ranks: checkpoints and job outputs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, Protocol

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import LaunchError, UsageError
from headrace.data.storage.urls import parse_url
from headrace.jobs.environment.host_layout import HostLayout
from headrace.jobs.environment.script_environment import ScriptEnvironment
from headrace.jobs.failure import describe_exit
from headrace.jobs.spec import ContractOptions, SyncOptions
from headrace.jobs.sync.sync_messages import OutputTask, SyncTask, finish_process

DEADLINE_S = 300.0
"""How long a job that has ended may upload its last files, in seconds."""
_STATE_FOLDER = "uploads"
_MAX_PROCESSES = 100
_SYNC_PROCESS = (sys.executable, "-P", "-m", "headrace.jobs.sync.sync_process")


def extra_grace_s(options: SyncOptions) -> float:
    """Return how much longer a job may take to end, for its uploads, in seconds."""
    return DEADLINE_S if options.is_any else 0.0


class HostSync:
    """The checkpoint sync of a host.

    Args:
        options: The sync options.
        script_env: The script environment of the host.
        run: The run folder on this host.
        kept_as: The name under which this host's files are synced.
        kept_by: Those names of all hosts of the job; None: unknown.

    Raises:
        UsageError: The URL is a folder that contains the checkpoints, or lies among them.
    """

    def __init__(
        self, options: SyncOptions, script_env: ScriptEnvironment, run: Path, *,
        kept_as: str = "host", kept_by: Sequence[str] | None = (),
    ) -> None:  # fmt: skip
        self._url = options.checkpoint_uri
        self._run = run
        self._folder = _checkpoints_of(script_env, run)
        self._is_vertex = "AIP_CHECKPOINT_DIR" in script_env.environment
        self._host = kept_as
        self._others = None if kept_by is None else tuple(sorted(set(kept_by) - {kept_as}))
        self._lock = threading.Lock()  # guards the decision on another process
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False
        if self._url is not None:
            _check_disjoint(self._url, self._folder)

    def environment(self) -> dict[str, str]:
        """Return the variables by which a script finds its checkpoints."""
        if self._url is None:
            return {}
        # Under two contracts at once there is one folder for both.
        vertex = {"AIP_CHECKPOINT_DIR": f"{self._folder}/"} if self._is_vertex else {}
        return {env.CHECKPOINT_DIR.name: str(self._folder), **vertex}

    def fetch(self) -> None:
        """Restore the newest checkpoints, before any rank starts.

        Raises:
            UsageError: The URL cannot be written to.
            LaunchError: They cannot be fetched; the reason was printed.
        """
        if self._url is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        fetching = self._start_process("fetch", own_session=False)
        assert fetching.stdin is not None
        code = fetching.wait()
        if code == UsageError.exit_code:
            raise UsageError("the job was not started: see above what --checkpoint-uri needs.")
        if code != 0:
            raise LaunchError(
                f"The checkpoints could not be fetched ({describe_exit(code)}); nothing was "
                "started."
            )

    def start(self) -> None:
        """Sync checkpoints from now on; another process takes over where this one is killed.

        The thread that restarts it inherits this thread's blocked signals.
        """
        if self._url is not None:
            self._process = self._start_process("keep", own_session=True)
            threading.Thread(target=self._watch, name="headrace-keeping", daemon=True).start()

    def finish(self, *, clean: bool) -> None:
        """Upload the last files; return once that is done, or at the deadline.

        Args:
            clean: No rank was killed, possibly while it wrote a file.
        """
        if self._process is None:
            return
        with self._lock:
            self._is_over = True
            process = self._process
        code = finish_process(process, clean=clean, deadline_s=DEADLINE_S)
        if code != 0:
            print_status(f"headrace: the last checkpoints may not be kept: {describe_exit(code)}\n")

    @property
    def pids(self) -> frozenset[int]:
        """The sync processes, which are no ranks."""
        process = self._process
        return frozenset() if process is None else frozenset({process.pid})

    def _start_process(self, verb: str, *, own_session: bool) -> subprocess.Popen[bytes]:
        assert self._url is not None
        task = SyncTask(
            url=self._url, folder=str(self._folder), host=self._host, others=self._others,
            lock=str(self._run / _STATE_FOLDER / f"{self._host}.lock"), parent=os.getpid(),
        )  # fmt: skip
        process = subprocess.Popen(
            [*_SYNC_PROCESS, verb],
            stdin=subprocess.PIPE,
            env=env.child_environment(),
            # Signals to the job's process group or terminal must not end the sync.
            start_new_session=own_session,
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(task.to_json().encode() + b"\n")
            process.stdin.flush()
        return process

    def _watch(self) -> None:
        """Start another process for each one that is killed, by the OOM killer, say."""
        for _ in range(_MAX_PROCESSES):
            assert self._process is not None
            code = self._process.wait()
            with self._lock:
                if self._is_over or code >= 0:  # one that exits by itself has said why
                    return
                self._process = self._start_process("keep", own_session=True)
            print_status(
                f"headrace: the process that keeps checkpoints was {describe_exit(code)}; another "
                "takes over\n"
            )


def _checkpoints_of(script_env: ScriptEnvironment, run: Path) -> Path:
    if script_env.tree is not None:
        return Path(script_env.tree.folders.checkpoints)
    folder = script_env.environment.get("AIP_CHECKPOINT_DIR")
    return Path(folder) if folder else run / "checkpoints"


def _check_disjoint(url: str, folder: Path) -> None:
    location = parse_url(url)
    if location.kind != "local":
        return
    there, here = Path(location.prefix).resolve(), folder.resolve()
    if there.is_relative_to(here) or here.is_relative_to(there):
        raise UsageError(
            f"--checkpoint-uri {location.url}: the script's own checkpoints are in {here}, so they "
            "would be kept inside of themselves. Name a folder apart from it, best on another disk."
        )


class ClusterHost(Protocol):
    """A host of a job on several hosts."""

    @property
    def plan(self) -> str | None:
        """The layout of the job's hosts, JSON."""

    @property
    def sends_part(self) -> bool:
        """Whether it shares no disk with the launcher."""


class OutputUpload:
    """The upload of a job's outputs, or of those of one host on another machine.

    Args:
        options: The sync options.
        contract: The contract options; without a platform contract the outputs are not known.
        run: The run folder on this host.
        job: The job's name; None: the run folder's.
        role: "part": another host merges what this one uploads.

    Raises:
        UsageError: There is no platform contract, so that the script has no output folder.
    """

    def __init__(
        self, options: SyncOptions, contract: ContractOptions, run: Path, *,
        job: str | None = None, role: Literal["job", "part"] = "job",
    ) -> None:  # fmt: skip
        self._url = options.output_path
        self._role = role
        self._run = run
        self._job = job or run.name
        self._process: subprocess.Popen[bytes] | None = None
        if self._url is not None and not set(contract.contracts) - {"torchrun"}:
            raise UsageError(
                "--output-path: no contract tells the script where to leave what it makes. Add "
                "--contract sagemaker (SM_MODEL_DIR) or --contract vertex (AIP_MODEL_DIR)."
            )

    def begin(self) -> None:
        """Reserve the output path for this job, before any rank starts.

        Raises:
            UsageError: Another job writes there, or it cannot be written to.
            LaunchError: The path could not be checked; the reason was printed.
        """
        if self._url is None:
            return
        task = OutputTask(url=self._url, job=self._job, run=str(self._run))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "headrace.jobs.sync.output_process", self._role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env.child_environment(),
            start_new_session=True,  # signals to the job's group must not end the upload
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(task.to_json().encode() + b"\n")
            self._process.stdin.flush()
        if self._role == "part" or self._process.stdout.readline() == b"taken\n":
            return
        code = self._process.wait()
        self._process = None
        if code == UsageError.exit_code:
            raise UsageError("the job was not started: see above what --output-path needs.")
        raise LaunchError(
            f"The output path could not be looked at ({describe_exit(code)}); nothing was started."
        )

    @property
    def pids(self) -> frozenset[int]:
        """The upload processes, which are no ranks."""
        process = self._process
        return frozenset() if process is None else frozenset({process.pid})

    def finish(self) -> None:
        """Upload the outputs; return once that is done, or at the deadline."""
        process, self._process = self._process, None
        if process is None:
            return
        code = finish_process(process, clean=True, deadline_s=DEADLINE_S)
        if code != 0:
            print_status(
                f"headrace: what the job made is not all uploaded: {describe_exit(code)}\n"
            )


@contextmanager
def finished_on_error(output: OutputUpload) -> Iterator[None]:
    """Release the output path where the job cannot start."""
    try:
        yield
    except BaseException:
        output.finish()
        raise


def host_output_upload(
    options: SyncOptions, contract: ContractOptions, host: ClusterHost
) -> OutputUpload:
    """Return a host's upload: nothing where the launcher finds the outputs itself."""
    run = Path(env.RUN_DIR.get() or ".")
    if not host.sends_part or host.plan is None:
        return OutputUpload(SyncOptions(), contract, run)
    return OutputUpload(
        options, contract, run, job=HostLayout.from_json(host.plan).job, role="part"
    )
