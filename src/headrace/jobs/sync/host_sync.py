"""The sync of one host for the process that runs its ranks: checkpoints and job outputs."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import LaunchError, UsageError
from headrace.core.process.sidecar import RestartedSidecar, Sidecar
from headrace.data.storage.urls import parse_url, safe_url
from headrace.jobs.environment.host_environment import HostLayout
from headrace.jobs.environment.script_environment import ScriptEnvironment
from headrace.jobs.failure import describe_exit
from headrace.jobs.spec import ContractOptions, SyncOptions
from headrace.jobs.sync.sync_messages import (
    FENCED_EXIT_CODE,
    SILENCE_S,
    OutputTask,
    SyncTask,
    safe_host_name,
)

DEADLINE_S = 300.0
"""How long a job that has ended may upload its last files, in seconds."""
UPLOAD_FAILED = LaunchError.exit_code
"""The exit code of a job whose script has succeeded, and whose files are not all uploaded."""
_KILL_AFTER_S = DEADLINE_S + 10.0
_STATE_FOLDER = "uploads"
_MAX_RESTARTS = 100
_SYNC_PROCESS = "headrace.jobs.sync.sync_process"
_FAILURE = "ml/output/failure"  # below a host's folder in the run


def extra_grace_s(options: SyncOptions) -> float:
    """Return how much longer a job may take to end, for its uploads, in seconds."""
    return DEADLINE_S if options.is_any else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncNames:
    """The names by which a job's hosts sync checkpoints to one URL; by default of a lone host."""

    own: str = "host"
    # Of all hosts, of which one takes over the files of earlier ones; None: they are unknown
    all: Sequence[str] | None = ()

    @classmethod
    def numbered(cls, number: int, hosts: int) -> SyncNames:
        """Return those of a host among several that are numbered from 0 on."""
        names = tuple(f"node-{each}" for each in range(hosts))
        return cls(own=names[number], all=names)

    @classmethod
    def of_unknown_hosts(cls) -> SyncNames:
        """Return those of a host that does not know which others there are."""
        return cls(own=socket.gethostname(), all=None)


class HostSync:
    """The checkpoint sync of a host.

    Raises UsageError (the URL is a folder that contains the checkpoints, or lies among them).
    """

    def __init__(
        self, options: SyncOptions, script_env: ScriptEnvironment, run: Path,
        names: SyncNames | None = None,
    ) -> None:  # fmt: skip
        names = names or SyncNames()
        self._url = options.checkpoint_uri
        self._run = run
        self._folder = _checkpoints_of(script_env, run)
        seen = script_env.environment.get("AIP_CHECKPOINT_DIR")
        self._is_elsewhere = seen is not None and script_env.source_of(seen) != self._folder
        self._seen_as = [
            str(Path(place) / self._folder.relative_to(source))
            for place, source in script_env.bind_mounts.items()
            if self._folder.is_relative_to(source)
        ]
        self._host = names.own
        self._others = None if names.all is None else tuple(sorted(set(names.all) - {names.own}))
        self._sidecar: RestartedSidecar | None = None
        if self._url is not None:
            _check_disjoint(self._url, self._folder)

    def environment(self) -> dict[str, str]:
        """Return the variables by which a script finds its checkpoints."""
        if self._url is None:
            return {}
        # Under two contracts at once there is one folder for both.
        vertex = {"AIP_CHECKPOINT_DIR": f"{self._folder}/"} if self._is_elsewhere else {}
        return {env.CHECKPOINT_DIR.name: str(self._folder), **vertex}

    def fetch(self) -> None:
        """Restore the newest checkpoints, before any rank starts.

        Raises UsageError (the URL cannot be written to), LaunchError (they cannot be fetched; the
        reason was printed).
        """
        if self._url is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        # In this session: ctrl-C ends it.
        fetching = Sidecar(_SYNC_PROCESS, self._task("fetch"), own_session=False)
        code = _code_at_end(fetching, f"fetches checkpoints from {safe_url(self._url)}")
        if code == UsageError.exit_code:
            raise UsageError("the job was not started: see above what --checkpoint-uri needs.")
        if code != 0:
            raise LaunchError(
                f"The checkpoints could not be fetched ({describe_exit(code)}); nothing was "
                "started."
            )

    def start(self) -> None:
        """Sync checkpoints from now on; another process takes over where this one ends early."""
        if self._url is not None:
            self._sidecar = RestartedSidecar(
                _SYNC_PROCESS, self._task("keep"), restarts=_MAX_RESTARTS, killed=_print_killed,
                is_repeated=lambda code: code != FENCED_EXIT_CODE, finishes=True,
            )  # fmt: skip

    def finish(self, *, clean: bool) -> bool:
        """Upload the last files; return whether all are uploaded, once done or at the deadline.

        Unless `clean` a rank was killed, possibly while it wrote a file.
        """
        sidecar, self._sidecar = self._sidecar, None
        if sidecar is None:
            return True
        failure = _failure_to_end(sidecar, clean=clean)
        if failure is not None:
            print_status(
                f"not all checkpoints are at {safe_url(self._url or '')} ({failure}); they are in "
                f"{self._folder}"
            )
        return failure is None

    def _task(self, verb: Literal["fetch", "keep"]) -> dict[str, Any]:
        assert self._url is not None
        lock = str(self._run / _STATE_FOLDER / f"{safe_host_name(self._host)}.lock")
        return asdict(
            SyncTask(
                verb=verb, url=self._url, folder=str(self._folder), host=self._host,
                others=self._others, seen_as=self._seen_as, since_ns=time.time_ns(), lock=lock,
            )
        )  # fmt: skip


def _is_message(sidecar: Sidecar, work: str) -> bool:
    """Wait for a message, and return False where there is none any more.

    Raises LaunchError (there was neither within `SILENCE_S`; the process is killed).
    """
    try:
        return sidecar.receive(SILENCE_S) is not None
    except TimeoutError:
        sidecar.kill()
        raise LaunchError(
            f"The process that {work} has not gone on for {SILENCE_S:.0f} s and was ended; nothing "
            "was started. Look whether the store and this host's disk answer."
        ) from None


def _code_at_end(sidecar: Sidecar, work: str) -> int:
    """Return the exit code of a sidecar that says now and then that it goes on."""
    try:
        while _is_message(sidecar, work):
            pass
        code = sidecar.wait(SILENCE_S)
    finally:
        sidecar.kill()
    return -signal.SIGKILL if code is None else code


def _print_killed(code: int, has_restarted: bool) -> None:  # noqa: FBT001 - a callback
    how = "was" if code < 0 else "ended with"
    what = "another takes over" if has_restarted else "the next ones are kept when the job ends"
    print_status(f"the process that keeps checkpoints {how} {describe_exit(code)}; {what}")


def _failure_to_end(sidecar: Sidecar | RestartedSidecar, *, clean: bool) -> str | None:
    """Have a process upload the remaining files and end; return how it failed, if it did."""
    code = sidecar.end({"clean": clean, "deadline_s": DEADLINE_S}, patience_s=_KILL_AFTER_S)
    if code == 0:
        return None
    return describe_exit(-signal.SIGKILL if code is None else code)


def _checkpoints_of(script_env: ScriptEnvironment, run: Path) -> Path:
    if script_env.tree is not None:
        return Path(script_env.tree.folders.checkpoints)
    folder = script_env.environment.get("AIP_CHECKPOINT_DIR")
    return script_env.source_of(folder) if folder else run / "checkpoints"


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
    """The upload of a job's outputs, or of a part of them, which another host merges.

    `run` is the run folder on this host, whose name is also the job's unless one is given.

    Raises UsageError (there is no platform contract, so that the script has no output folder).
    """

    def __init__(
        self, options: SyncOptions, contract: ContractOptions, run: Path, *,
        job: str | None = None, role: Literal["job", "part"] = "job",
    ) -> None:  # fmt: skip
        self._url = options.output_path
        self._role = role
        self._run = run
        self._job = job or run.name
        self._sidecar: Sidecar | None = None
        if self._url is not None and not contract.has_platform:
            raise UsageError(
                "--output-path: no contract tells the script where to leave what it makes. Add "
                "--contract sagemaker (SM_MODEL_DIR) or --contract vertex (AIP_MODEL_DIR)."
            )

    def begin(self) -> None:
        """Reserve the output path for this job, before any rank starts.

        Raises UsageError (another job writes there, or it cannot be written to), LaunchError (the
        path could not be checked; the reason was printed).
        """
        if self._url is None:
            return
        task = OutputTask(role=self._role, url=self._url, job=self._job, run=str(self._run))
        self._sidecar = sidecar = Sidecar("headrace.jobs.sync.output_process", asdict(task))
        if self._role == "part":
            return
        if _is_message(sidecar, f"reserves {safe_url(self._url)}"):
            self._remove_failures()
            return
        self._sidecar = None
        code = _code_at_end(sidecar, f"reserves {safe_url(self._url)}")
        if code == UsageError.exit_code:
            raise UsageError("the job was not started: see above what --output-path needs.")
        raise LaunchError(
            f"The output path could not be looked at ({describe_exit(code)}); nothing was started."
        )

    def _remove_failures(self) -> None:
        """Remove what hosts of an earlier attempt say of their failures: this one may lack them.

        They would be uploaded as failures of this attempt, whose own hosts remove theirs anyway.
        """
        for failure in self._run.glob(f"hosts/*/{_FAILURE}"):
            with suppress(OSError):  # a disk that fails has more to say than this
                failure.unlink()

    def finish(self) -> bool:
        """Upload the outputs; return whether all are uploaded, once done or at the deadline."""
        sidecar, self._sidecar = self._sidecar, None
        if sidecar is None:
            return True
        failure = _failure_to_end(sidecar, clean=True)
        if failure is not None:
            print_status(f"what the job made is not all uploaded: {failure}")
        return failure is None


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
