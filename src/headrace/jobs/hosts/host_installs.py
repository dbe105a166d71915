"""The installation of a job's requirements on every host of a cluster.

On each host pip installs them before any other process of the job starts
(cluster/requirements_installer.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.cluster.agent import HostProgram
from headrace.cluster.placement import PlacedAgent
from headrace.core import env
from headrace.core.errors import LaunchError, UsageError
from headrace.jobs.hosts.host_commands import WorkingDir
from headrace.jobs.hosts.rank_group import HostExit, RankGroupFactory, StopRequest
from headrace.jobs.requirements import MAX_INSTALL_S, SKIP_HINT, InstallProgress
from headrace.records.run_folder import Attempt, RunFolder

_KILLED = (-9, 137)


@dataclass
class HostInstalls:
    """The installations of one job.

    The constructor raises UsageError where the file is not in the folder that is copied.
    """

    file: Path
    working_dir: WorkingDir
    is_named: bool  # by the user; otherwise the file was found in the code folder
    is_copied: bool  # the working directory, to other machines
    folder: RunFolder
    attempt: Attempt  # the one that starts

    def __post_init__(self) -> None:
        if self.is_copied and not self.file.is_relative_to(self.working_dir.folder):
            raise UsageError(
                f"{self.file} lies outside {self.working_dir.folder}, which goes along to the "
                "hosts. Put it beside the script, or start the job from a folder that holds both."
            )
        self._job = secrets.token_hex(8)
        self._progress = InstallProgress(self.file.name, self.folder, self.attempt.number)
        self.handle_message = self._progress.handle_message
        self._done: set[str] = set()  # Ray node ids of the ranks' hosts that are done

    def command(self, host: str, *, is_here: bool) -> tuple[str, ...]:
        """Return the installer's command on a host, for an agent's `HostProgram`."""
        logs = str(self.folder.logs(self.attempt.number)) if is_here else "{logs}"
        named = "yes" if self.is_named else "no"
        file = self.file if is_here else self.file.relative_to(self.working_dir.folder)
        return (
            "{python}", "-u", "-P", "-m", "headrace.cluster.requirements_installer",
            "--parent", "{parent}", "--announce", "{announce}", "--job", self._job,
            "--file", str(file), "--named", named, "--logs", logs,
            "--name", host, "--longest-s", str(MAX_INSTALL_S),
        )  # fmt: skip

    def install(
        self, agents: Sequence[PlacedAgent], rank_group: RankGroupFactory, stop: StopRequest
    ) -> list[HostExit]:
        """Install the file on the ranks' hosts, and return the ends of installers on lost hosts.

        Raises LaunchError where it could not be installed on a host.
        """
        if {agent.host.node_id for agent in agents} <= self._done:
            return []
        installers = rank_group(agents, self.handle_message)
        ends = installers.run([self._program(agent) for agent in agents], stop)
        self._done |= {end.agent.host.node_id for end in ends if end.returncode == 0}
        failed = [end for end in ends if end.returncode != 0]
        is_lost = any(end.returncode is None for end in ends)
        if failed and not is_lost and not stop.is_requested():
            raise LaunchError(self._message(failed))
        return failed

    def _program(self, agent: PlacedAgent) -> HostProgram:
        is_here = agent.facts.is_drivers
        return HostProgram(
            command=self.command(agent.host.name, is_here=is_here),
            folder=str(Path.cwd()) if is_here else None,
            environment=env.whole_environment() if is_here else env.portable_environment(),
            is_whole=is_here,
        )

    def _message(self, failed: Sequence[HostExit]) -> str:
        hosts = [end.host for end in failed if end.host in self._progress.why_not]
        if not hosts:
            end = failed[0]
            killed = "; often memory ran out" if end.returncode in _KILLED else ""
            return (
                f"{end.host}: what installs {self.file.name} ended with {end.returncode}{killed}, "
                f"and no rank was started. {SKIP_HINT}"
            )
        return (
            f"{self.file.name} could not be installed on {', '.join(hosts)}, and no rank was "
            f"started. All that pip said: {self.folder.logs(self.attempt.number)}/"
            f"requirements-*.log. {SKIP_HINT}"
        )
