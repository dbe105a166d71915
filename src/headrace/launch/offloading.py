"""The auxiliary hosts of a job on a cluster, and what its ranks hear of them."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from headrace.cluster.agent import HostFacts, Program
from headrace.cluster.auxiliary import Auxiliaries
from headrace.cluster.groups import Group
from headrace.cluster.machine import Mark
from headrace.cluster.placement import PlacedAgent
from headrace.core import env
from headrace.core.places import SITE
from headrace.launch.showing import Shown
from headrace.launch.told import tell
from headrace.launch.travelling import Luggage

_HOSTS = "hosts"


class Offloading:
    """Batches made on the hosts of a group, for as long as the job lasts.

    Args:
        ray: Connected.
        group: The group's name.
        declared: What the command line says of it, where it does.
        luggage: The job's folder.
        mark: Left by this process.
        shown: Shows what those hosts say.
    """

    def __init__(
        self, ray: ModuleType, group: str, declared: Group | None, luggage: Luggage, mark: Mark,
        shown: Shown,
    ) -> None:  # fmt: skip
        self._luggage = luggage
        self._agents: Sequence[PlacedAgent] = ()
        self._told = -1
        self._auxiliaries = Auxiliaries(
            ray, group, mark, self._program, show=shown.show, tell=tell, declared=declared
        )

    def variables(self, *, is_here: bool) -> dict[str, str]:
        """Return the variables by which ranks find the hosts, for a program of an agent's."""
        path = env.path_with(SITE) if is_here else "{site}"
        return {env.OFFLOAD.name: f"{{{_HOSTS}}}", env.PYTHONPATH.name: path}

    def serve(self, agents: Sequence[PlacedAgent]) -> None:
        """Tell these agents' ranks of the hosts from now on."""
        self._agents = agents

    def files_of(self, agent: PlacedAgent) -> dict[str, bytes]:
        """Return the files that the program of an agent's ranks begins with."""
        folder = self._luggage.folder if agent.facts.is_drivers else agent.facts.folder
        return {_HOSTS: self._auxiliaries.file_for(folder)}

    def tend(self) -> None:
        """Look after the hosts; to be called often."""
        self._auxiliaries.tend()
        if self._told != self._auxiliaries.version:
            self._publish()

    def close(self) -> None:
        """End what makes batches there."""
        self._auxiliaries.close()

    def _publish(self) -> None:
        self._told = self._auxiliaries.version
        for agent in self._agents:
            for name, content in self.files_of(agent).items():
                agent.actor.keep.remote(name, content)

    def _program(
        self, facts: HostFacts, command: tuple[str, ...], files: dict[str, bytes]
    ) -> Program:
        is_here = facts.is_drivers
        return Program(
            command=command,
            folder=self._luggage.folder if is_here else None,
            environment=env.whole_environment() if is_here else env.travelling_environment(),
            is_whole=is_here,
            files=files,
        )
