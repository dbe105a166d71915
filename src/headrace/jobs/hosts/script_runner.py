"""The process that runs a script without ranks on a host of a job, without torchrun.

`python -m headrace.jobs.hosts.script_runner --parent PID --announce FD --go FD --logs FOLDER --once
JSON` is started by the host's agent, and ends with it. Its exit code is the script's; how the
script failed, or why it could not begin, is announced as a line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.core import env
from headrace.core.errors import HeadraceError
from headrace.core.process.parent_death import die_with_parent, parent_bound_command
from headrace.core.process.process_groups import RankProcessGroups
from headrace.core.process.supervision import (
    DEFAULT_GRACE_S,
    exit_code_of,
    signals_blocked,
    wait_for,
)
from headrace.jobs.environment.host_environment import host_environment
from headrace.jobs.environment.host_layout import HostLayout
from headrace.jobs.environment.script_environment import (
    ScriptEnvironment,
    program_command,
    with_script_options,
)
from headrace.jobs.failure import RankFailure, describe_exit, last_traceback, last_write_s
from headrace.jobs.hosts.driver_protocol import announce_refusal, wait_at_start_barrier
from headrace.jobs.output.terminal_output import LogFollower
from headrace.jobs.spec import ContractOptions, ScriptOptions, SyncOptions
from headrace.jobs.sync.host_sync import HostSync, host_output_upload


@dataclass(frozen=True, slots=True, kw_only=True)
class HostScript:
    """A script, and the host that it runs on.

    Attributes:
        prefix: What its lines begin with.
        name: The host's, as the launcher calls it.
        number: The host's among all of them.
        restarts: How often the job was started before.
        script: Its path, or its module's name.
        is_module: The script is a module's name.
        is_program: It is a program of its own, not Python's.
        arguments: The user's own.
        contract: What it is told: the fields of `ContractOptions`.
        around: What is around it: the fields of `ScriptOptions`.
        plan: The job's hosts, as `HostLayout` writes them.
        host: This one, as the plan calls it.
        cores: The host's.
        devices: Likewise.
        uploads: What is kept elsewhere: the fields of `SyncOptions`.
        kept_as: What this host's checkpoints are kept as.
        kept_by: Likewise, of all hosts.
        sends_part: What it makes goes to the output path for the launcher to put together.
    """

    prefix: str
    name: str
    number: int
    restarts: int
    script: str
    is_module: bool
    is_program: bool
    arguments: tuple[str, ...]
    contract: Mapping[str, Any]
    around: Mapping[str, Any]
    plan: str
    host: str
    cores: int
    devices: int
    uploads: Mapping[str, Any]
    kept_as: str
    kept_by: tuple[str, ...]
    sends_part: bool

    def site(self) -> ScriptEnvironment:
        """Make the host's site; raises UsageError and LaunchError."""
        folder = Path(env.RUN_DIR.get() or ".")
        site = host_environment(
            self.contract_options(), HostLayout.from_json(self.plan), self.host,
            script=self.script, is_module=self.is_module, folder=folder,
            devices=self.devices, cores=self.cores or None, arguments=self.arguments,
            environment=self.around["environment"],
        )  # fmt: skip
        around = {**self.around, "dependencies": tuple(self.around["dependencies"])}
        return with_script_options(site, ScriptOptions(**around), folder)

    def contract_options(self) -> ContractOptions:
        """Return what the script is told."""
        return ContractOptions(**{**self.contract, "contracts": tuple(self.contract["contracts"])})

    def host_uploads(self, site: ScriptEnvironment) -> HostSync:
        """Return what the host keeps elsewhere; raises UsageError."""
        return HostSync(
            SyncOptions(**self.uploads), site, Path(env.RUN_DIR.get() or "."),
            kept_as=self.kept_as, kept_by=self.kept_by,
        )  # fmt: skip

    def command(self, site: ScriptEnvironment) -> list[str]:
        """Return the command line of the script itself."""
        if self.is_program:
            return program_command(self.script, self.arguments, site)
        python = env.PYTHON_EXEC.get() or sys.executable
        module = ["-m", self.script] if self.is_module else [str(Path(self.script).absolute())]
        return [python, "-u", *module, *site.arguments, *self.arguments]


def main(arguments: Sequence[str]) -> int:
    """Run the script and return its exit code."""
    told = dict(zip(arguments[::2], arguments[1::2], strict=True))
    die_with_parent(int(told["--parent"]))
    announce_fd = int(told["--announce"])
    once = HostScript(**json.loads(told["--once"]))
    logs = Path(told["--logs"])
    if once.restarts:
        logs /= f"restart-{once.restarts}"
    logs.mkdir(parents=True, exist_ok=True)
    try:
        site = once.site()
        uploads = once.host_uploads(site)
        output = host_output_upload(SyncOptions(**once.uploads), once.contract_options(), once)
        output.begin()
        uploads.fetch()
        wait_at_start_barrier(announce_fd, int(told["--go"]))
    except HeadraceError as error:
        announce_refusal(announce_fd, error)
        return error.exit_code
    code = _run(once, site, uploads, logs)
    output.finish()
    if code != 0:
        _announce(announce_fd, once, code, logs)
    return exit_code_of(code)


def _run(once: HostScript, site: ScriptEnvironment, uploads: HostSync, logs: Path) -> int:
    streams = {name: logs / f"{once.name}.{name}" for name in ("stdout", "stderr")}
    command = once.command(site)
    leftovers = RankProcessGroups()
    with signals_blocked() as held:
        uploads.start()
        with streams["stdout"].open("wb") as out, streams["stderr"].open("wb") as err:
            child = subprocess.Popen(
                parent_bound_command(
                    sys.executable, site.placed(command), pid_pipe=leftovers.pid_pipe
                ),
                stdout=out,
                stderr=err,
                env=env.child_environment({**site.environment, **uploads.environment()}),
                cwd=site.folder,
                start_new_session=True,
            )
        follower = LogFollower()
        follower.follow(streams["stdout"], f"[{once.prefix}] ", sys.stdout.buffer)
        follower.follow(streams["stderr"], f"[{once.prefix}] ", sys.stderr.buffer)
        # The agent counts the grace, and kills.
        code = wait_for(
            child, held, own_session=True,
            grace_s=lambda: DEFAULT_GRACE_S if site.failure() else None,
        )  # fmt: skip
        leftovers.end()  # as with the container that the script would have had
        follower.close()
        told = last_traceback(streams["stderr"]) if code else ""
        verdict = site.verdict(exit_code_of(code))
        site.note_end(verdict, command, told)
        uploads.finish(clean=code >= 0)
    return code if verdict == exit_code_of(code) else verdict


def _announce(descriptor: int, once: HostScript, code: int, logs: Path) -> None:
    log = logs / f"{once.name}.stderr"
    first = RankFailure(
        rank=once.number, returncode=code, seen_s=time.time(), last_words_s=last_write_s(log)
    )
    message = (
        f"headrace: {once.name} failed: {describe_exit(code)}\n{last_traceback(log).rstrip()}\n"
        f"headrace: its whole log: {log}\n"
    )
    failure = {"first": asdict(first), "message": message, "logs": str(logs)}
    os.write(descriptor, json.dumps({"failure": failure}).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
