"""A rank of a job that torchrun has started around `headrace run`: the ranks of a host are one run.

The first rank of a host leads: it makes the run's attempt, and all that the script is to find. The
others run the script with what it tells them. They meet in the folder that torchrun's agent makes
for each start of its ranks, of which every rank is told.
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
from headrace.core.errors import LaunchError
from headrace.core.files import write_whole
from headrace.core.world import World, current_world
from headrace.launch.told import tell
from headrace.records.launcher import identity_of, living_pid

_RUN = "headrace-run.json"  # beside the folders of all starts
_LEADER, _OTHER = "headrace.json", "headrace-{}.json"
_BEGIN_S = 120.0  # all ranks are started at once, but a full host is slow
_LOOK_EVERY_S = 0.05
_KILLED = 128 + 9
_ASKED_TO_STOP = (128 + 15, 128 + 2, 128 + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Led:
    """What the leader tells the other ranks of its host.

    Attributes:
        run_dir: The run's folder.
        attempt: The attempt's number.
        environment: Variables of the script; None removes one.
        arguments: The script's, before the user's own.
        folder: Where it starts; None: where it would anyway.
        places: Folders and files that it sees elsewhere, by the place where it does.
    """

    run_dir: str
    attempt: int
    environment: Mapping[str, str | None]
    arguments: tuple[str, ...] = ()
    folder: str | None = None
    places: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterRank:
    """This process, as one of such ranks.

    Attributes:
        world: Its place among them.
        start: The folder of this start of the ranks, on this host.
        command: The command line that started them all.
    """

    world: World
    start: Path
    command: tuple[str, ...]

    @property
    def leads(self) -> bool:
        """Whether it is the first one of its host."""
        return self.world.local_rank == 0

    def run_before(self) -> str | None:
        """Return the run of the same ranks' earlier starts; None: this is the first."""
        told = _read(self.start.parent / _RUN)
        return None if told is None else str(told["run_dir"])

    def lead(self) -> None:
        """Say that this rank leads, though what it has to tell takes its time; LaunchError."""
        tell(
            f"headrace: rank {self.world.rank} of {self.world.size} in a job of torchrun's, whose "
            "ranks on this host are one run\n"
        )
        _write(self.start / _LEADER, {"leader": identity_of(os.getpid())})

    def tell_others(self, led: Led) -> None:
        """Have the other ranks begin; raises LaunchError."""
        _write(self.start.parent / _RUN, {"run_dir": led.run_dir})
        _write(self.start / _LEADER, {"leader": identity_of(os.getpid()), "led": asdict(led)})

    def wait_for_leader(self) -> Led:
        """Return what the leader tells, as soon as it does.

        Raises:
            LaunchError: There is none, or it has ended.
        """
        self._say({})
        deadline = time.monotonic() + _BEGIN_S
        while True:
            told = _read(self.start / _LEADER)
            if told is not None and "led" in told:
                return Led(**{**told["led"], "arguments": tuple(told["led"]["arguments"])})
            if told is not None and living_pid(told["leader"]) is None:
                raise LaunchError(
                    f"Rank {self.world.rank} was not started: the first rank of this host ended "
                    "before; see what it said."
                )
            if told is None and time.monotonic() > deadline:
                raise LaunchError(
                    f"Rank {self.world.rank} heard nothing of its host's first rank for "
                    f"{_BEGIN_S:g} s: have torchrun start headrace run as every rank."
                )
            time.sleep(_LOOK_EVERY_S)

    def note_end(self, code: int) -> None:
        """Tell the leader how this rank ended; raises LaunchError."""
        self._say({"code": code})

    def verdict(self, code: int) -> int:
        """Return how the ranks of this host ended; where the leader ended well, once all have.

        Args:
            code: The leader's exit code. If it failed, torchrun is to know that at once: it ends
                the others.
        """
        codes = [code]
        deadline = time.monotonic() + _BEGIN_S
        for number in range(1, self.world.local_size):
            while (found := self._code_of(number, deadline)) is None and code == 0:
                time.sleep(_LOOK_EVERY_S)
            codes.append(found or 0)
        failed = [each for each in codes if each and each not in _ASKED_TO_STOP]
        return failed[0] if failed else next(filter(None, codes), 0)

    def _code_of(self, number: int, deadline: float) -> int | None:
        """Return how another rank ended; None: it runs, or is only to begin."""
        file = self.start / _OTHER.format(number)
        told = _read(file)
        if told is None:
            return 0 if time.monotonic() > deadline else None
        if "code" not in told and living_pid(told["rank"]) is None:
            told = _read(file) or told  # it may have ended in between, and well
            return int(told.get("code", _KILLED))
        return told.get("code")

    def _say(self, more: Mapping[str, Any]) -> None:
        file = self.start / _OTHER.format(self.world.local_rank)
        _write(file, {"rank": identity_of(os.getpid()), **more})


def find_outer_rank() -> OuterRank | None:
    """Return the rank of torchrun's that this process is; None: it is none.

    Ranks of Headrace's own jobs are none, nor is what a rank's script starts.
    """
    if env.RUN_DIR.get() or not env.TORCHRUN_ID.get() or env.RANK.get() is None:
        return None
    agent = _agent()
    if agent is None:
        return None
    error_file = env.ERROR_FILE.get()
    start = Path(error_file).parent.parent if error_file else None
    if start is None or not start.is_dir():
        tell(
            "headrace: a rank of torchrun's that names no folder of its start "
            f"({env.ERROR_FILE.name}): it is a run of its own\n"
        )
        return None
    return OuterRank(world=current_world(), start=start, command=agent)


def _agent() -> tuple[str, ...] | None:
    """Return the command line of the process that made the ranks; None: a script is in between.

    Shells and the like between it and this process are part of the rank.
    """
    try:
        for parent in psutil.Process().parents():
            if env.TORCHRUN_ID.name not in env.names_begun_with(parent.pid):
                return tuple(parent.cmdline())
            if Path(parent.exe()).name.startswith("python"):
                return None
    except (OSError, psutil.Error):  # another user's
        return ("torchrun",)
    return ("torchrun",)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return told


def _write(file: Path, told: Mapping[str, Any]) -> None:
    try:
        write_whole(file, json.dumps(told))
        with suppress(OSError):  # variables may hold secrets; torchrun's own folder is private
            file.chmod(0o600)
    except OSError as error:
        raise LaunchError(
            f"The ranks of torchrun's job cannot meet in {file.parent}: {error}. Make room there, "
            "or name another folder by torchrun's --log-dir."
        ) from error
