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
from headrace.core.source_location import SITECUSTOMIZE_DIR
from headrace.jobs.hosts.host_commands import WorkingDir
from headrace.jobs.hosts.host_installs import HostInstalls
from headrace.jobs.hosts.offload_auto import OffloadAuto
from headrace.jobs.output.terminal_output import HostOutput
from headrace.platforms.instance_groups import GroupSpec

_HOSTS_FILE = "hosts"


class OffloadSetup:
    """The offload hosts of a job, for as long as it lasts.

    Args:
        ray: The module, connected to the cluster.
        group: The offload group's name.
        working_dir: The job's working directory.
        marker: The driver's.
        output: Prints those hosts' output.
        choice: Decides whether they are used; None: they are.
        requirements: The requirements that they install first.
        declared: The group's spec on the command line, if any.
        training: The training group's name.
    """

    def __init__(
        self, ray: ModuleType, group: str, working_dir: WorkingDir, marker: HostMarker,
        output: HostOutput, choice: OffloadAuto | None, requirements: HostInstalls | None, *,
        declared: GroupSpec | None, training: str,
    ) -> None:  # fmt: skip
        self._ray = ray
        self._working_dir = working_dir
        self._choice = choice
        self._requirements = requirements
        self._agents: Sequence[PlacedAgent] = ()
        self._published_version = -1
        self._publications: list[Any] = []  # pending calls of agents
        self._fleet = OffloadFleet(
            ray,
            group,
            marker,
            self._program,
            on_message=self._handle_message,
            show=output.show,
            declared=declared,
            training=training,
            used=choice is None,
        )

    def variables(self, *, is_here: bool) -> dict[str, str]:
        """Return the variables by which ranks find the hosts, for an agent's `HostProgram`.

        They include a common hash seed: workers on other hosts must hash strings as the ranks do.
        """
        path = env.pythonpath_with(SITECUSTOMIZE_DIR) if is_here else "{pythonpath}"
        return {
            env.OFFLOAD.name: f"{{{_HOSTS_FILE}}}",
            env.PYTHONPATH.name: path,
            env.HASH_SEED.name: env.HASH_SEED.get() or env.DEFAULT_HASH_SEED,
        }

    def serve(self, agents: Sequence[PlacedAgent]) -> None:
        """Publish the list of hosts to these agents' ranks from now on."""
        self._agents = agents

    def files_of(self, agent: PlacedAgent) -> dict[str, bytes]:
        """Return the files with which the ranks of an agent start, as of `version`."""
        folder = self._working_dir.folder if agent.facts.is_drivers else agent.facts.folder
        return {_HOSTS_FILE: self._fleet.file_for(folder)}

    @property
    def version(self) -> int:
        """The version of the published list of hosts."""
        return self._fleet.version

    def tend(self) -> None:
        """Maintain the offload hosts and the published list; called often."""
        if self._choice is not None and self._choice.is_yes(self._fleet.cores, time.monotonic()):
            self._fleet.use()
        self._fleet.tend()
        if self._published_version != self.version or self._needs_republishing():
            self._publish()

    def close(self) -> None:
        """End the processes on the offload hosts."""
        with suppress(Exception):  # a failed report must not keep the hosts reserved
            if self._choice is not None:
                self._choice.close()
        self._fleet.close()

    def _publish(self) -> None:
        self._published_version = self.version
        self._publications = [
            agent.actor.replace_file.remote(name, content, self._published_version)
            for agent in self._agents
            for name, content in self.files_of(agent).items()
        ]

    def _needs_republishing(self) -> bool:
        """Whether an agent could not be reached by the last publication."""
        if not self._publications:
            return False
        ended, self._publications = self._ray.wait(
            self._publications, num_returns=len(self._publications), timeout=0
        )
        for each in ended:
            try:
                self._ray.get(each)
            except self._ray.exceptions.ActorUnavailableError:
                return True
            except self._ray.exceptions.RayError:
                pass  # it has ended: restarted ranks begin with the current file
        return False

    def _handle_message(self, host: str, announced: dict[str, Any]) -> bool:
        assert self._requirements is not None  # only the installer sends other messages
        return self._requirements.handle_message(host, announced)

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
