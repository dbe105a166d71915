"""The offload hosts of a job on a cluster, and the list of them that its ranks read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from headrace.cluster.agent import HostFacts, HostProgram
from headrace.cluster.offload_fleet import OffloadFleet
from headrace.cluster.placement import PlacedAgent
from headrace.cluster.ray_driver import RayHost
from headrace.cluster.same_host import HostMarker
from headrace.core import env
from headrace.core.console import print_status
from headrace.core.source_location import SITECUSTOMIZE_DIR
from headrace.jobs.hosts.host_commands import WorkingDir
from headrace.jobs.hosts.host_installs import HostInstalls
from headrace.jobs.hosts.offload_auto import OffloadAuto
from headrace.jobs.output.terminal_output import HostOutput
from headrace.platforms.instance_groups import GroupSpec

_HOSTS_FILE = "hosts"


class OffloadSetup:
    """Batches made on the hosts of a group, for as long as the job lasts.

    Args:
        ray: Connected.
        group: The group's name.
        working_dir: The job's folder.
        mark: Left by this process.
        shown: Shows what those hosts say.
        choice: Tells whether they are to help; None: they are.
        requirements: What they install before they help.
        declared: What the command line says of the group, where it does.
        training: The group that trains.
    """

    def __init__(
        self,
        ray: ModuleType,
        group: str,
        working_dir: WorkingDir,
        mark: HostMarker,
        shown: HostOutput,
        choice: OffloadAuto | None,
        requirements: HostInstalls | None,
        *,
        declared: GroupSpec | None,
        training: str,
    ) -> None:
        self._ray = ray
        self._working_dir = working_dir
        self._choice = choice
        self._requirements = requirements
        self._agents: Sequence[PlacedAgent] = ()
        self._told = -1
        self._keeping: list[Any] = []  # agents' answers to that
        self._auxiliaries = OffloadFleet(
            ray,
            group,
            mark,
            self._program,
            hear=self._hear,
            show=shown.show,
            tell=print_status,
            declared=declared,
            training=training,
            used=choice is None,
        )

    def variables(self, *, is_here: bool) -> dict[str, str]:
        """Return the variables by which ranks find the hosts, for a program of an agent's.

        With them all ranks hash texts alike: what workers elsewhere hash has to be as it is there.
        """
        path = env.pythonpath_with(SITECUSTOMIZE_DIR) if is_here else "{site}"
        return {
            env.OFFLOAD.name: f"{{{_HOSTS_FILE}}}",
            env.PYTHONPATH.name: path,
            env.HASH_SEED.name: env.HASH_SEED.get() or env.DEFAULT_HASH_SEED,
        }

    def serve(self, agents: Sequence[PlacedAgent]) -> None:
        """Tell these agents' ranks of the hosts from now on."""
        self._agents = agents

    def files_of(self, agent: PlacedAgent) -> dict[str, bytes]:
        """Return the files that the program of an agent's ranks begins with, as of `version`."""
        folder = self._working_dir.folder if agent.facts.is_drivers else agent.facts.folder
        return {_HOSTS_FILE: self._auxiliaries.file_for(folder)}

    @property
    def version(self) -> int:
        """Counts the changes of what ranks are told."""
        return self._auxiliaries.version

    def tend(self) -> None:
        """Look after the hosts; to be called often."""
        if self._choice is not None and self._choice.is_yes(
            self._auxiliaries.cores, time.monotonic()
        ):
            self._auxiliaries.use()
        self._auxiliaries.tend()
        if self._told != self.version or self._needs_republishing():
            self._publish()

    def close(self) -> None:
        """End what makes batches there."""
        with suppress(Exception):  # what it tells must not keep hosts from being left
            if self._choice is not None:
                self._choice.close()
        self._auxiliaries.close()

    def _publish(self) -> None:
        self._told = self.version
        self._keeping = [
            agent.actor.keep.remote(name, content, self._told)
            for agent in self._agents
            for name, content in self.files_of(agent).items()
        ]

    def _needs_republishing(self) -> bool:
        """Whether an agent that could not be reached has not heard the last news."""
        if not self._keeping:
            return False
        ended, self._keeping = self._ray.wait(
            self._keeping, num_returns=len(self._keeping), timeout=0
        )
        for each in ended:
            try:
                self._ray.get(each)
            except self._ray.exceptions.ActorUnavailableError:
                return True
            except self._ray.exceptions.RayError:
                pass  # it has ended: ranks that are started anew begin with the file
        return False

    def _hear(self, host: str, announced: dict[str, Any]) -> bool:
        assert self._requirements is not None  # nobody else announces anything but a port
        return self._requirements.hear(host, announced)

    def _program(
        self, host: RayHost, facts: HostFacts, command: tuple[str, ...], files: dict[str, bytes]
    ) -> HostProgram:
        is_here = facts.is_drivers
        if self._requirements is not None:
            command = (*self._requirements.command(host.name, is_here=is_here), "--", *command)
        return HostProgram(
            command=command,
            folder=self._working_dir.folder if is_here else None,
            environment=env.whole_environment() if is_here else env.portable_environment(),
            is_whole=is_here,
            files=files,
        )
