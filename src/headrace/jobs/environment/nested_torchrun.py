"""The ranks of a torchrun that runs `headrace run` as its script: one run per host.

The first rank of a host is the leader: it starts the attempt and prepares the script environment.
The followers run the script with what it shares. They exchange messages in the folder that
torchrun's agent creates for each start of its ranks, and whose path every rank knows.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import LaunchError
from headrace.core.files import write_text_atomically
from headrace.core.process.supervision import exit_code_of, signals_blocked
from headrace.core.world import World, current_world
from headrace.jobs.environment.script_command import script_command
from headrace.jobs.environment.script_environment import ScriptEnvironment
from headrace.jobs.failure import describe_exit
from headrace.jobs.output import run_script
from headrace.jobs.spec import JobSpec
from headrace.records.run_folder import RunFolder, process_identity, running_pid

_RUN_FILE = "headrace-run.json"  # in the parent of all starts' folders
_LEADER_FILE, _FOLLOWER_FILE = "headrace.json", "headrace-{}.json"
_MAX_START_S = 120.0  # all ranks are started at once, but a full host is slow
_POLL_S = 0.05
_KILLED = 128 + 9
_STOP_CODES = (128 + 15, 128 + 2, 128 + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderMessage:
    """The leader's message to the other ranks of its host; see `ScriptEnvironment`."""

    run_dir: str
    attempt: int
    environment: Mapping[str, str | None]  # None removes a variable
    arguments: tuple[str, ...] = ()
    folder: str | None = None
    bind_mounts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedRank:
    """This process as a rank of a surrounding torchrun."""

    world: World
    start: Path  # the folder of this start of the ranks, on this host
    command: tuple[str, ...]  # the command line that started all ranks

    def run_before(self) -> str | None:
        """Return the run folder of an earlier start of the same ranks; None: this is the first."""
        message = _read_message(self.start.parent / _RUN_FILE)
        return None if message is None else str(message["run_dir"])

    def announce_leader(self) -> None:
        """Announce this rank as the leader, before its slow preparations; raises LaunchError."""
        print_status(
            f"rank {self.world.rank} of {self.world.size} in a job of torchrun's, whose "
            "ranks on this host are one run"
        )
        _write_message(self.start / _LEADER_FILE, {"leader": process_identity(os.getpid())})

    def share_with_followers(self, leader_message: LeaderMessage) -> None:
        """Publish the leader's message, on which the other ranks start; raises LaunchError."""
        _write_message(self.start.parent / _RUN_FILE, {"run_dir": leader_message.run_dir})
        _write_message(
            self.start / _LEADER_FILE,
            {"leader": process_identity(os.getpid()), "message": asdict(leader_message)},
        )

    def wait_for_leader(self) -> LeaderMessage:
        """Return the leader's message; raises LaunchError where there is no leader any more."""
        self._write_state({})
        deadline_s = time.monotonic() + _MAX_START_S
        while True:
            message = _read_message(self.start / _LEADER_FILE)
            if message is not None and "message" in message:
                fields = message["message"]
                return LeaderMessage(**{**fields, "arguments": tuple(fields["arguments"])})
            if message is not None and running_pid(message["leader"]) is None:
                raise LaunchError(
                    f"Rank {self.world.rank} was not started: the first rank of this host ended "
                    "before; see what it said."
                )
            if message is None and time.monotonic() > deadline_s:
                raise LaunchError(
                    f"Rank {self.world.rank} heard nothing of its host's first rank for "
                    f"{_MAX_START_S:g} s: have torchrun start headrace run as every rank."
                )
            time.sleep(_POLL_S)

    def note_end(self, code: int) -> None:
        """Publish this rank's exit code; raises LaunchError."""
        self._write_state({"code": code})

    def verdict(self, code: int) -> int:
        """Return the exit code of this host's ranks, given the leader's.

        A leader's failure is returned at once, for torchrun to end the other ranks; else all ranks
        are awaited.
        """
        codes = [code]
        deadline_s = time.monotonic() + _MAX_START_S
        for number in range(1, self.world.local_size):
            while (found := self._code_of(number, deadline_s)) is None and code == 0:
                time.sleep(_POLL_S)
            codes.append(found or 0)
        failed = [each for each in codes if each and each not in _STOP_CODES]
        return failed[0] if failed else next(filter(None, codes), 0)

    def _code_of(self, number: int, deadline_s: float) -> int | None:
        """Return another rank's exit code; None: it runs, or has not begun."""
        file = self.start / _FOLLOWER_FILE.format(number)
        state = _read_message(file)
        if state is None:
            return 0 if time.monotonic() > deadline_s else None
        if "code" not in state and running_pid(state["rank"]) is None:
            state = _read_message(file) or state  # it may have ended in between, with success
            return int(state.get("code", _KILLED))
        return state.get("code")

    def _write_state(self, more: Mapping[str, Any]) -> None:
        file = self.start / _FOLLOWER_FILE.format(self.world.local_rank)
        _write_message(file, {"rank": process_identity(os.getpid()), **more})


def find_nested_rank() -> NestedRank | None:
    """Return this process's rank in a surrounding torchrun; None: it is no such rank.

    Ranks of Headrace's own jobs are none, nor is a process that a rank's script starts.
    """
    if env.RUN_DIR.get() or not env.TORCHRUN_ID.get() or env.RANK.get() is None:
        return None
    agent = _torchrun_command()
    if agent is None:
        return None
    error_file = env.ERROR_FILE.get()
    start = Path(error_file).parent.parent if error_file else None
    if start is None or not start.is_dir():
        print_status(
            "a rank of torchrun's that names no folder of its start "
            f"({env.ERROR_FILE.name}): it is a run of its own"
        )
        return None
    return NestedRank(world=current_world(), start=start, command=agent)


def _torchrun_command() -> tuple[str, ...] | None:
    """Return the command line of the process that started the ranks; None: a script is in between.

    Shells and similar programs in between are part of the rank.
    """
    try:
        for parent in psutil.Process().parents():
            if env.TORCHRUN_ID.name not in env.initial_names_of(parent.pid):
                return tuple(parent.cmdline())
            if Path(parent.exe()).name.startswith("python"):
                return None
    except (OSError, psutil.Error):  # a process of another user
        return ("torchrun",)
    return ("torchrun",)


def _read_message(file: Path) -> dict[str, Any] | None:
    with suppress(FileNotFoundError):
        return dict(json.loads(file.read_text(encoding="utf-8")))
    return None


def _write_message(file: Path, message: Mapping[str, Any]) -> None:
    try:
        write_text_atomically(file, json.dumps(message))
        with suppress(OSError):  # variables may hold secrets; torchrun's own folder is private
            file.chmod(0o600)
    except OSError as error:
        raise LaunchError(
            f"The ranks of torchrun's job cannot meet in {file.parent}: {error}. Make room there, "
            "or name another folder by torchrun's --log-dir."
        ) from error


def run_follower(job: JobSpec, script: str, rank: NestedRank) -> int:
    """Run the script of a follower and return its exit code, or 128 + a signal.

    Raises LaunchError where there is no leader any more.
    """
    message = rank.wait_for_leader()
    script_env = ScriptEnvironment(
        arguments=message.arguments, folder=message.folder, bind_mounts=message.bind_mounts
    )
    logs = RunFolder(Path(message.run_dir)).logs(message.attempt)
    log = logs / f"rank-{rank.world.rank}.stderr"
    with signals_blocked() as blocked:
        returncode = run_script(
            script_command(
                script, job.script.arguments, script_env, is_module=job.script.is_module
            ),
            script_env=script_env,
            environment=message.environment,
            log=log,
            blocked=blocked,
        )
        code = exit_code_of(returncode)
        rank.note_end(code)
    if returncode != 0:
        print_status(f"{job.script.path}: {describe_exit(returncode)}; log: {log}")
    return code
