"""What a job on a cluster needs: the requirements.txt beside the script, installed on every host.

Each host has pip install it before anything of the job runs there (cluster/installing.py).
"""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace.cluster.agent import Program
from headrace.cluster.placement import PlacedAgent
from headrace.core import env
from headrace.core.errors import LaunchError, UsageError
from headrace.launch.gang import Gang, HostEnd, StopRequest
from headrace.launch.told import tell
from headrace.launch.travelling import Luggage
from headrace.records.run_folder import Attempt, RunFolder

_USUAL = "requirements.txt"
_NONE = "none"
_LONGEST_S = 1800.0  # something large may have to be built
_KILLED = (-9, 137)
_LEAVE_OUT = "`--requirements none` leaves the file out."

GangOf = Callable[[Callable[[str, dict[str, Any]], object]], Gang]


def find_requirements(told: str | None, args: argparse.Namespace) -> Path | None:
    """Return the file that every host installs; None: nothing is installed.

    Args:
        told: The file, or `none`; None: the one beside the script, where there is one.
        args: torchrun's parsed flags, which name the script.

    Raises:
        UsageError: There is no such file.
    """
    if told == _NONE:
        return None
    if told is None:
        # A module's own folder is known only once it is imported.
        beside = Path() if args.module or args.no_python else Path(args.training_script).parent
        return _plain(beside / _USUAL) if (beside / _USUAL).is_file() else None
    if not Path(told).is_file():
        raise UsageError(
            f"--requirements {told}: there is no such file in {Path.cwd()}. Name one, or `none`."
        )
    return _plain(Path(told))


def _plain(file: Path) -> Path:
    # Links stay: what they lead to goes along in their place.
    return Path(os.path.normpath(file.absolute()))


class Requirements:
    """The installs of one job.

    Args:
        file: What is installed.
        is_named: The user named it; otherwise it was found.
        luggage: The job's folder.
        travels: That folder goes to other machines.
        folder: The run's.
        attempt: The attempt that begins.

    Raises:
        UsageError: The file does not go along.
    """

    def __init__(
        self, file: Path, luggage: Luggage, *, is_named: bool, travels: bool, folder: RunFolder,
        attempt: Attempt,
    ) -> None:  # fmt: skip
        if travels and not file.is_relative_to(luggage.folder):
            raise UsageError(
                f"{file} lies outside {luggage.folder}, which goes along to the hosts. Put it "
                "beside the script, or start the job from a folder that holds both."
            )
        self._file = file
        self._is_named = is_named
        self._luggage = luggage
        self._folder = folder
        self._attempt = attempt
        self._job = secrets.token_hex(8)
        self._installing: set[str] = set()  # hosts that have said so
        self._why_not: dict[str, str] = {}
        self._done: set[str] = set()  # hosts of ranks, by Ray's number

    def command(self, host: str, *, is_here: bool) -> tuple[str, ...]:
        """Return what installs it on a host, for a program of an agent's.

        Args:
            host: The host's name.
            is_here: It is this machine.
        """
        logs = str(self._folder.logs(self._attempt.number)) if is_here else "{logs}"
        named = "yes" if self._is_named else "no"
        place = self._file if is_here else self._file.relative_to(self._luggage.folder)
        return (
            "{python}", "-u", "-P", "-m", "headrace.cluster.installing",
            "--parent", "{parent}", "--announce", "{announce}", "--job", self._job,
            "--file", str(place), "--named", named, "--logs", logs,
            "--name", host, "--longest-s", str(_LONGEST_S),
        )  # fmt: skip

    def install(
        self, agents: Sequence[PlacedAgent], gang_of: GangOf, stop: StopRequest
    ) -> list[HostEnd]:
        """Install it on hosts of ranks, and return how it ended where a host was lost meanwhile.

        Args:
            agents: One a host.
            gang_of: Returns a gang of those agents, which passes on what they announce.
            stop: Whether the job is to end.

        Raises:
            LaunchError: It could not be installed on a host.
        """
        if {agent.host.node_id for agent in agents} <= self._done:
            return []
        ends = gang_of(self.hear).run([self._program(agent) for agent in agents], stop)
        self._done |= {end.agent.host.node_id for end in ends if end.returncode == 0}
        if stop.is_asked() or any(end.returncode is None for end in ends):
            return [end for end in ends if end.returncode != 0]
        failed = [end for end in ends if end.returncode != 0]
        if failed:
            raise LaunchError(self._message(failed))
        return []

    def hear(self, host: str, announced: dict[str, Any]) -> bool:
        """Take in what a host announces, and return whether the job can go on there.

        Args:
            host: The host's name.
            announced: As cluster/installing.py writes it.
        """
        name = self._file.name
        if "installing" in announced:
            said = announced["installing"]
            more = f" (pip: {said})" if said and host in self._installing else ""
            self._installing.add(host)
            tell(f"headrace: {host} installs {name}{more}\n")
        elif "installed" in announced:
            if announced["installed"] and not announced["by_another"]:
                tell(f"headrace: {host} has installed {', '.join(announced['installed'])}\n")
            for conflict in announced.get("conflicts", ()):
                tell(f"headrace: {host}: what was there is broken now: {conflict}\n")
            self._note(host, announced["installed"])
        elif "left_out" in announced:
            tell(f"headrace: {host} installs no {name}: {announced['left_out']}\n")
        elif "not_installed" in announced:
            why = announced["not_installed"]
            is_told = why in self._why_not.values()
            self._why_not[host] = why
            more = "for the same reason" if is_told else why
            tell(f"headrace: {host}: {name} cannot be installed: {more}\n")
            return False
        return True

    def _note(self, host: str, installed: Sequence[str]) -> None:
        try:
            self._folder.note_installed(self._attempt.number, host, installed)
        except (OSError, LaunchError) as error:
            tell(f"headrace: what {host} has installed cannot be written down: {error}\n")

    def _program(self, agent: PlacedAgent) -> Program:
        is_here = agent.facts.is_drivers
        return Program(
            command=self.command(agent.host.name, is_here=is_here),
            folder=str(Path.cwd()) if is_here else None,
            environment=env.whole_environment() if is_here else env.travelling_environment(),
            is_whole=is_here,
        )

    def _message(self, failed: Sequence[HostEnd]) -> str:
        hosts = [end.host for end in failed if end.host in self._why_not]
        if not hosts:
            end = failed[0]
            killed = "; often memory ran out" if end.returncode in _KILLED else ""
            return (
                f"{end.host}: what installs {self._file.name} ended with {end.returncode}{killed}, "
                f"and no rank was started. {_LEAVE_OUT}"
            )
        return (
            f"{self._file.name} could not be installed on {', '.join(hosts)}, and no rank was "
            f"started. All that pip said: {self._folder.logs(self._attempt.number)}/"
            f"requirements-*.log. {_LEAVE_OUT}"
        )
