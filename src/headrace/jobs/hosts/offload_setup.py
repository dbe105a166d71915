"""The offload hosts of a job on a cluster, and the list of them that its ranks read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
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


@dataclass(kw_only=True)
class OffloadSetup:
    """The offload hosts of a job, for as long as it lasts."""

    ray: Any  # the module, connected to the cluster
    group: str  # the offload group's name
    working_dir: WorkingDir
    marker: HostMarker  # the driver's
    output: HostOutput  # prints those hosts' output
    choice: OffloadAuto | None  # decides whether they are used; None: they are
    requirements: HostInstalls | None  # what they install first
    declared: GroupSpec | None  # the group on the command line, if any
    training: str  # the training group's name

    def __post_init__(self) -> None:
        self._agents: Sequence[PlacedAgent] = ()
        self._published_version = -1
        self._publications: list[Any] = []  # pending calls of agents
        self._fleet = OffloadFleet(
            ray=self.ray,
            group=self.group,
            marker=self.marker,
            program_of=self._program,
            on_message=self._handle_message,
            show=self.output.show,
            declared=self.declared,
            training=self.training,
            is_used=self.choice is None,
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
        folder = self.working_dir.folder if agent.facts.is_drivers else agent.facts.folder
        return {_HOSTS_FILE: self._fleet.file_for(folder)}

    @property
    def version(self) -> int:
        """The version of the published list of hosts."""
        return self._fleet.version

    def tend(self) -> None:
        """Maintain the offload hosts and the published list; called often."""
        if self.choice is not None and self.choice.is_yes(self._fleet.cores, time.monotonic()):
            self._fleet.use()
        self._fleet.tend()
        if self._published_version != self.version or self._needs_republishing():
            self._publish()

    def close(self) -> None:
        """End the processes on the offload hosts."""
        with suppress(Exception):  # a failed report must not keep the hosts reserved
            if self.choice is not None:
                self.choice.close()
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
        ended, self._publications = self.ray.wait(
            self._publications, num_returns=len(self._publications), timeout=0
        )
        for each in ended:
            try:
                self.ray.get(each)
            except self.ray.exceptions.ActorUnavailableError:
                return True
            except self.ray.exceptions.RayError:
                pass  # it has ended: restarted ranks begin with the current file
        return False

    def _handle_message(self, host: str, announced: dict[str, Any]) -> bool:
        assert self.requirements is not None  # only the installer sends other messages
        return self.requirements.handle_message(host, announced)

    def _program(
        self, host: RayHost, facts: HostFacts, command: tuple[str, ...], files: dict[str, bytes]
    ) -> HostProgram:
        is_here = facts.is_drivers
        if self.requirements is not None:
            command = (*self.requirements.command(host.name, is_here=is_here), "--", *command)
        return HostProgram(
            command=command,
            folder=self.working_dir.folder if is_here else None,
            environment=env.whole_environment() if is_here else env.portable_environment(),
            is_whole=is_here,
            files=files,
        )
