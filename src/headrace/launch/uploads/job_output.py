"""What a job uploads to its output path, for the process that runs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, Protocol

from headrace.core import env
from headrace.core.errors import LaunchError, UsageError
from headrace.launch.contract_flags import ContractOptions
from headrace.launch.failure import describe_end
from headrace.launch.site.site_plan import SitePlan
from headrace.launch.told import tell
from headrace.launch.uploads.ending import finished
from headrace.launch.uploads.flags import UploadOptions
from headrace.launch.uploads.host_uploads import DEADLINE_S
from headrace.launch.uploads.keep_task import OutputTask


class OnHost(Protocol):
    """A host of a job of several."""

    @property
    def plan(self) -> str | None:
        """The job's hosts."""

    @property
    def sends_part(self) -> bool:
        """Whether it shares no disk with the launcher."""


class JobOutput:
    """What a job, or a host of it elsewhere, uploads.

    Args:
        options: What the command line says.
        contract: What the script is told; without a contract it makes nothing that is known.
        run: The run's folder on this host.
        job: The job's name; None: the folder's.
        role: "part": what is uploaded is for another host to put together.

    Raises:
        UsageError: Nothing tells the script where to leave what it makes.
    """

    def __init__(
        self, options: UploadOptions, contract: ContractOptions, run: Path, *,
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
        """Have the output path be this job's, before any rank begins.

        Raises:
            UsageError: Another job writes there, or nobody may.
            LaunchError: That could not be found out; why was told.
        """
        if self._url is None:
            return
        task = OutputTask(url=self._url, job=self._job, run=str(self._run))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "headrace.launch.uploads.output_keeper", self._role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env.child_environment(),
            start_new_session=True,  # what ends the job by its group must not end the upload
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
            f"The output path could not be looked at ({describe_end(code)}); nothing was started."
        )

    @property
    def pids(self) -> frozenset[int]:
        """The processes beside the ranks."""
        process = self._process
        return frozenset() if process is None else frozenset({process.pid})

    def finish(self) -> None:
        """Upload what was made; returns once that is done, or its deadline is over."""
        process, self._process = self._process, None
        if process is None:
            return
        code = finished(process, clean=True, deadline_s=DEADLINE_S)
        if code != 0:
            tell(f"headrace: what the job made is not all uploaded: {describe_end(code)}\n")


@contextmanager
def finished_on_error(output: JobOutput) -> Iterator[None]:
    """Have the output path be free for the next job where this one cannot begin."""
    try:
        yield
    except BaseException:
        output.finish()
        raise


def member_output(options: UploadOptions, contract: ContractOptions, host: OnHost) -> JobOutput:
    """Return what a host uploads: nothing where the launcher finds it by itself."""
    run = Path(env.RUN_DIR.get() or ".")
    if not host.sends_part or host.plan is None:
        return JobOutput(UploadOptions(), contract, run)
    return JobOutput(options, contract, run, job=SitePlan.from_json(host.plan).job, role="part")
