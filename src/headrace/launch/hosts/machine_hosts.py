"""The hosts of a job that are emulated on this machine, without Ray: one agent's threads for each.

They share the machine's cores, memory and files, and each has a loopback address of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from headrace.cluster.agent import Program
from headrace.cluster.connection import Host
from headrace.cluster.local_agents import LocalActor, LocalCalls
from headrace.cluster.machine import Mark
from headrace.cluster.placement import PlacedAgent
from headrace.contracts.groups import Group
from headrace.contracts.sagemaker_folders import USUAL_BASE
from headrace.core import env
from headrace.core.placed import may_place
from headrace.launch.hosts.emulated_types import devices_of
from headrace.launch.hosts.gang import HostEnd, StopRequest
from headrace.launch.hosts.programs import Programs
from headrace.launch.hosts.scripts_ray import ScriptsRay
from headrace.launch.hosts.starts import GangOf

_ADDRESS = "127.0.0.1"


class MachineHosts:
    """The hosts of one job.

    Args:
        groups: Their groups; the hosts of the first one share the machine's devices.
        programs: What hosts run.
        mark: Left by this process.
        devices: Names of the machine's devices.

    Attributes:
        calls: Calls of agents in this process.
    """

    def __init__(
        self, groups: Sequence[Group], programs: Programs, mark: Mark, *, devices: Sequence[str]
    ) -> None:
        self.calls = LocalCalls()
        self._groups = groups
        self._programs = programs
        self._mark = mark
        self._devices = devices
        self._ray = ScriptsRay()

    def placed(self, stop: StopRequest) -> _Agents | None:
        """Return an agent for each host; None: the job is over."""
        return None if stop.is_asked() else _Agents(self._groups, self._mark, self._devices)

    def prepare(
        self, agents: Sequence[PlacedAgent], gang_of: Callable[[Sequence[PlacedAgent]], GangOf],
        stop: StopRequest,
    ) -> list[HostEnd]:  # fmt: skip
        """Settle what the hosts are called; this machine has what the job needs."""
        del gang_of, stop
        self._programs.plan(agents, lambda: may_place(USUAL_BASE))
        return []

    def program(self, agents: Sequence[PlacedAgent], agent: PlacedAgent, number: int) -> Program:
        """Return what a host is to run."""
        address = self._programs.told_address(agents, agent)
        variables = self._ray.variables(address) if address else {}
        return self._programs.program(
            agents, agent, number, variables=variables, files={}, version=0
        )

    def tend(self) -> None:
        """Nothing else is to be looked after."""

    def gone(self, agents: Sequence[PlacedAgent]) -> list[PlacedAgent]:
        """None: this machine is there as long as this process."""
        del agents
        return []

    def close(self) -> None:
        """Close what was recorded, and remove what Ray nodes of the script's have left."""
        self._programs.finish()
        self._ray.close()


class _Agents:
    """One agent for each host.

    Attributes:
        agents: In the order of the groups.
    """

    def __init__(self, groups: Sequence[Group], mark: Mark, devices: Sequence[str]) -> None:
        self._actors: list[LocalActor] = []
        self.agents: list[PlacedAgent] = []
        left = list(devices)
        for group in groups:
            share = len(devices) // group.hosts if group is groups[0] else 0
            count = share if group.gpus is None else group.gpus
            for name in group.host_names():
                own = devices_of(group, left, count)
                left = left[len(own or ()) :]
                self._add(group, name, mark, own, count)

    def close(self) -> None:
        """End the agents, and all that they have started."""
        for actor in self._actors:
            actor.close()

    def _add(
        self, group: Group, name: str, mark: Mark, devices: list[str] | None, count: int
    ) -> None:
        actor = LocalActor({} if devices is None else env.device_variables(devices))
        self._actors.append(actor)
        host = Host(
            node_id=name,
            name=name,
            address=_ADDRESS,
            group=group.name,
            cpus=group.cpus or len(os.sched_getaffinity(0)),
            gpus=count,
        )
        facts = actor.look.remote(mark, host.address).result()
        self.agents.append(PlacedAgent(actor=actor, host=host, facts=facts))
