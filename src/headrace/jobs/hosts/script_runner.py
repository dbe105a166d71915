"""The process that runs a script without ranks on a host of a job, without torchrun.

The host's agent starts it as `python -m headrace.jobs.hosts.script_runner --parent PID --announce
FD --go FD --logs FOLDER --once JSON`, and it ends with the agent. Its exit code is the script's.
It announces a failure of the script, or why the script could not start, as a line of JSON.
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
    """A script without ranks, and its host.

    Attributes:
        prefix: The prefix of its output lines.
        name: The host's name in the launcher.
        number: The host's index among all hosts.
        restarts: How often the job was started before.
        script: The script's path, or a module's name.
        is_module: `script` is a module's name.
        is_program: `script` is a program that is not run by Python.
        arguments: The user's arguments.
        contract: The fields of `ContractOptions`.
        around: The fields of `ScriptOptions`.
        plan: The job's hosts, as JSON of a `HostLayout`.
        host: This host's name in the layout.
        cores: This host's CPU cores.
        devices: This host's device count.
        uploads: The fields of `SyncOptions`.
        kept_as: The name under which this host's checkpoints are synced.
        kept_by: Those names of all hosts.
        sends_part: This host uploads its part of the output, for the launcher to merge.
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
        """Return the host's script environment; raises UsageError and LaunchError."""
        folder = Path(env.RUN_DIR.get() or ".")
        script_env = host_environment(
            self.contract_options(), HostLayout.from_json(self.plan), self.host,
            script=self.script, is_module=self.is_module, folder=folder,
            devices=self.devices, cores=self.cores or None, arguments=self.arguments,
            environment=self.around["environment"],
        )  # fmt: skip
        around = {**self.around, "dependencies": tuple(self.around["dependencies"])}
        return with_script_options(script_env, ScriptOptions(**around), folder)

    def contract_options(self) -> ContractOptions:
        """Return the contract options."""
        return ContractOptions(**{**self.contract, "contracts": tuple(self.contract["contracts"])})

    def host_uploads(self, script_env: ScriptEnvironment) -> HostSync:
        """Return the syncs of this host; raises UsageError."""
        return HostSync(
            SyncOptions(**self.uploads), script_env, Path(env.RUN_DIR.get() or "."),
            kept_as=self.kept_as, kept_by=self.kept_by,
        )  # fmt: skip

    def command(self, script_env: ScriptEnvironment) -> list[str]:
        """Return the script's own command line."""
        if self.is_program:
            return program_command(self.script, self.arguments, script_env)
        python = env.PYTHON_EXEC.get() or sys.executable
        module = ["-m", self.script] if self.is_module else [str(Path(self.script).absolute())]
        return [python, "-u", *module, *script_env.arguments, *self.arguments]


def main(arguments: Sequence[str]) -> int:
    """Run the script and return its exit code."""
    flags = dict(zip(arguments[::2], arguments[1::2], strict=True))
    die_with_parent(int(flags["--parent"]))
    announce_fd = int(flags["--announce"])
    script = HostScript(**json.loads(flags["--once"]))
    logs = Path(flags["--logs"])
    if script.restarts:
        logs /= f"restart-{script.restarts}"
    logs.mkdir(parents=True, exist_ok=True)
    try:
        script_env = script.site()
        uploads = script.host_uploads(script_env)
        output = host_output_upload(
            SyncOptions(**script.uploads), script.contract_options(), script
        )
        output.begin()
        uploads.fetch()
        wait_at_start_barrier(announce_fd, int(flags["--go"]))
    except HeadraceError as error:
        announce_refusal(announce_fd, error)
        return error.exit_code
    code = _run(script, script_env, uploads, logs)
    output.finish()
    if code != 0:
        _announce(announce_fd, script, code, logs)
    return exit_code_of(code)


def _run(script: HostScript, script_env: ScriptEnvironment, uploads: HostSync, logs: Path) -> int:
    streams = {name: logs / f"{script.name}.{name}" for name in ("stdout", "stderr")}
    command = script.command(script_env)
    leftovers = RankProcessGroups()
    with signals_blocked() as blocked:
        uploads.start()
        with streams["stdout"].open("wb") as out, streams["stderr"].open("wb") as err:
            child = subprocess.Popen(
                parent_bound_command(
                    sys.executable, script_env.placed(command), pid_pipe=leftovers.pid_pipe
                ),
                stdout=out,
                stderr=err,
                env=env.child_environment({**script_env.environment, **uploads.environment()}),
                cwd=script_env.folder,
                start_new_session=True,
            )
        follower = LogFollower()
        follower.follow(streams["stdout"], f"[{script.prefix}] ", sys.stdout.buffer)
        follower.follow(streams["stderr"], f"[{script.prefix}] ", sys.stderr.buffer)
        # The agent enforces the grace period, and kills.
        code = wait_for(
            child, blocked, own_session=True,
            grace_s=lambda: DEFAULT_GRACE_S if script_env.failure() else None,
        )  # fmt: skip
        leftovers.end()  # as the end of the script's container would
        follower.close()
        traceback = last_traceback(streams["stderr"]) if code else ""
        verdict = script_env.verdict(exit_code_of(code))
        script_env.note_end(verdict, command, traceback)
        uploads.finish(clean=code >= 0)
    return code if verdict == exit_code_of(code) else verdict


def _announce(descriptor: int, script: HostScript, code: int, logs: Path) -> None:
    log = logs / f"{script.name}.stderr"
    first = RankFailure(
        rank=script.number, returncode=code, seen_s=time.time(), last_words_s=last_write_s(log)
    )
    message = (
        f"headrace: {script.name} failed: {describe_exit(code)}\n"
        f"{last_traceback(log).rstrip()}\n"
        f"headrace: its whole log: {log}\n"
    )
    failure = {"first": asdict(first), "message": message, "logs": str(logs)}
    os.write(descriptor, json.dumps({"failure": failure}).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
