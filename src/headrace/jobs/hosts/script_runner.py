"""The process that runs a script without ranks on a host of a job, without torchrun.

The host's agent starts it as `python -m headrace.jobs.hosts.script_runner --parent PID --announce
FD --go FD --logs FOLDER --assignment FILE`, and it ends with the agent. Its exit code is that of
the script, whose failure, or why it could not start, it announces as a line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from headrace.core import env
from headrace.core.errors import HeadraceError
from headrace.core.process.parent_death import (
    die_with_parent,
    parent_bound_command,
    read_wrapper_arguments,
)
from headrace.core.process.process_groups import RankProcessGroups
from headrace.core.process.supervision import (
    DEFAULT_GRACE_S,
    exit_code_of,
    signals_blocked,
    wait_for,
)
from headrace.jobs.cli_args import find_script
from headrace.jobs.environment.script_command import (
    find_program,
    program_command,
    script_command,
)
from headrace.jobs.environment.script_environment import ScriptEnvironment
from headrace.jobs.failure import RankFailure, describe_exit, last_traceback, last_write_s
from headrace.jobs.host_run import (
    HostAssignment,
    HostRun,
    ScriptEnd,
    announce_refusal,
    cluster_host_run,
    wait_at_start_barrier,
)
from headrace.jobs.output import LogFollower
from headrace.jobs.spec import JobSpec


def main(arguments: Sequence[str]) -> int:
    """Run the script and return its exit code."""
    flags, _ = read_wrapper_arguments(arguments)
    die_with_parent(int(flags["parent"]))
    announce_fd = int(flags["announce"])
    assignment = HostAssignment.read(flags["assignment"])
    logs = Path(flags["logs"])
    if assignment.restarts:
        logs /= f"restart-{assignment.restarts}"
    logs.mkdir(parents=True, exist_ok=True)
    try:
        job = JobSpec.from_json(assignment.spec)
        script = job.script.path
        if job.script.is_program:
            script = find_program(script, job.contract.source_dir)
        elif not job.script.is_module:
            script = find_script(script, job.contract.source_dir)
        run = cluster_host_run(job, script, assignment)
        run.prepare()
        command = _command(job, script, run.script_env)
        wait_at_start_barrier(announce_fd, int(flags["go"]))
    except HeadraceError as error:
        announce_refusal(announce_fd, error)
        return error.exit_code
    code = _run(run, command, assignment, logs)
    if code != 0:
        _announce(announce_fd, assignment, code, logs)
    return exit_code_of(code)


def _command(job: JobSpec, script: str, script_env: ScriptEnvironment) -> list[str]:
    if job.script.is_program:
        return program_command(script, job.script.arguments, script_env)
    path = script if job.script.is_module else str(Path(script).absolute())
    return script_command(path, job.script.arguments, script_env, is_module=job.script.is_module)


def _run(run: HostRun, command: Sequence[str], assignment: HostAssignment, logs: Path) -> int:
    """Run the script to its end; return its return code, or 1 where channels or uploads failed."""
    script_env = run.script_env
    streams = {name: logs / f"{assignment.name}.{name}" for name in ("stdout", "stderr")}
    leftovers = RankProcessGroups()
    with signals_blocked() as blocked:
        environment = run.start()
        with streams["stdout"].open("wb") as out, streams["stderr"].open("wb") as err:
            child = subprocess.Popen(
                parent_bound_command(
                    sys.executable, script_env.with_mounts(command), pid_pipes=leftovers.pid_pipes
                ),
                stdout=out,
                stderr=err,
                env=env.child_environment(environment),
                cwd=script_env.folder,
                start_new_session=True,
            )
        follower = LogFollower()
        prefix = f"[{assignment.prefix}] "
        follower.follow(streams["stdout"], prefix, sys.stdout.buffer)
        follower.follow(streams["stderr"], prefix, sys.stderr.buffer)
        # The agent enforces the grace period, and kills.
        code = wait_for(
            child, blocked, own_session=True,
            grace_s=lambda: DEFAULT_GRACE_S if script_env.failure() else None,
        )  # fmt: skip
        leftovers.end()  # as the end of the script's container would
        leftovers.release()
        follower.close()
        verdict = script_env.verdict(exit_code_of(code))
        traceback = last_traceback(streams["stderr"]) if code else ""
        verdict = run.finish(
            ScriptEnd(code=verdict, command=command, traceback=traceback, is_clean=code >= 0)
        )
    return code if verdict == exit_code_of(code) else verdict


def _announce(descriptor: int, host: HostAssignment, code: int, logs: Path) -> None:
    log = logs / f"{host.name}.stderr"
    first = RankFailure(
        rank=host.number, returncode=code, seen_s=time.time(), last_words_s=last_write_s(log)
    )
    cause = f"{host.name} failed: {describe_exit(code)}\n{last_traceback(log).rstrip()}"
    message = f"headrace: {cause}\nheadrace: its whole log: {log}\n"
    failure = {"first": asdict(first), "message": message, "logs": str(logs)}
    os.write(descriptor, json.dumps({"failure": failure}).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
