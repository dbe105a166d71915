"""The hosts that are emulated on this machine without Ray, and Ray clusters of their scripts.

Each host has an agent and a loopback address of its own; all share the machine's cores, memory and
files. Scripts for heterogeneous clusters run `ray start` on each host: variables give each such
node its own address, ports and temporary folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.bootstrap.ray_hooks import HOOK
from headrace.cluster.agent import HostProgram
from headrace.cluster.emulated_cluster import ThreadActor, ThreadCalls
from headrace.cluster.placement import PlacedAgent
from headrace.cluster.ray_driver import RayHost
from headrace.cluster.ray_node import make_node_folder, new_token, write_token_file
from headrace.cluster.same_host import HostMarker
from headrace.core import env
from headrace.core.process.mount_namespace import can_bind_mount
from headrace.jobs.hosts.cluster_options import emulated_devices
from headrace.jobs.hosts.host_commands import HostCommands
from headrace.jobs.hosts.rank_group import HostExit, RankGroupFactory, StopRequest
from headrace.platforms.instance_groups import GroupSpec
from headrace.platforms.sagemaker.folders import DEFAULT_BASE

_TOKEN_VARIABLES = (env.RAY_AUTH_MODE, env.RAY_AUTH_TOKEN, env.RAY_AUTH_TOKEN_PATH)
# PYTHON_EXEC: another interpreter may not find Headrace, whose hook this needs.
_HOST_VARIABLES = (env.RAY_TMPDIR, env.RAY_START_HOOK, env.PYTHON_EXEC)


class ScriptRayCluster:
    """The variables of a Ray cluster that scripts start themselves; created on first use."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._token: dict[str, str] = {}

    def variables(self, address: str) -> dict[str, str]:
        """Return the variables of a host's script; none where the user's name a Ray cluster."""
        if env.RAY_ADDRESS.get() is not None:
            return {}
        if self._folder is None:
            self._folder = make_node_folder()
            self._token = _token_variables(self._folder)
        if any(each.get() is not None for each in _HOST_VARIABLES):
            return self._token
        # A short name: the paths of Unix sockets are limited.
        own = self._folder / address.rpartition(".")[2]
        own.mkdir(exist_ok=True)
        return {
            **self._token,
            env.RAY_TMPDIR.name: str(own),
            env.HOST_ADDRESS.name: address,
            env.RAY_START_HOOK.name: HOOK,
            # gRPC's own resolver also asks a name server, and waits where there is no network.
            env.GRPC_DNS_RESOLVER.name: env.GRPC_DNS_RESOLVER.get() or "native",
        }

    def close(self) -> None:
        """Remove the token and Ray's files, after the hosts have ended."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _token_variables(folder: Path) -> dict[str, str]:
    """Return the variables with the token by which the script's Ray nodes authenticate.

    Ray requires a token that `ray.init()` once left in the home folder, but `ray start --address`
    sends it only by these variables.
    """
    if any(each.get() is not None for each in _TOKEN_VARIABLES):
        return {}
    variables = write_token_file(folder / "token", new_token())
    return {name: value for name, value in variables.items() if value is not None}


_ADDRESS = "127.0.0.1"


@dataclass(slots=True, kw_only=True)
class EmulatedHosts:
    """The emulated hosts of one job."""

    groups: Sequence[GroupSpec]  # the hosts of the first one share the machine's devices
    programs: HostCommands
    marker: HostMarker  # the driver's
    devices: Sequence[str]  # names of the machine's devices
    calls: ThreadCalls = field(default_factory=ThreadCalls)
    ray: ScriptRayCluster = field(default_factory=ScriptRayCluster)

    def placed(self, stop: StopRequest) -> _EmulatedAgents | None:
        """Return an agent for each host; None: the job is over."""
        if stop.is_requested():
            return None
        return _EmulatedAgents(self.groups, self.marker, self.devices)

    def prepare(
        self, agents: Sequence[PlacedAgent], rank_group: RankGroupFactory, stop: StopRequest
    ) -> list[HostExit]:
        """Set the hosts' names; the requirements are installed on this machine already."""
        del rank_group, stop
        self.programs.plan(agents, lambda: can_bind_mount(DEFAULT_BASE))
        return []

    def program(
        self, agents: Sequence[PlacedAgent], agent: PlacedAgent, number: int
    ) -> HostProgram:
        """Return the program of a host."""
        address = self.programs.script_address(agents, agent)
        variables = self.ray.variables(address) if address else {}
        return self.programs.program(
            agents, agent, number, variables=variables, files={}, version=0
        )

    def tend(self) -> None:
        """Do nothing: there is nothing else to maintain."""

    def gone(self, agents: Sequence[PlacedAgent]) -> list[PlacedAgent]:
        """Return no agents: this machine exists as long as this process."""
        del agents
        return []

    def close(self) -> None:
        """Close the records, and remove what the script's Ray nodes left."""
        self.programs.finish()
        self.ray.close()


class _EmulatedAgents:
    """The agents of the emulated hosts, in this process, in the order of the groups."""

    def __init__(
        self, groups: Sequence[GroupSpec], marker: HostMarker, devices: Sequence[str]
    ) -> None:
        self._actors: list[ThreadActor] = []
        self.agents: list[PlacedAgent] = []
        left = list(devices)
        for group in groups:
            share = len(devices) // group.hosts if group is groups[0] else 0
            count = share if group.gpus is None else group.gpus
            for name in group.host_names():
                own = emulated_devices(group, left, count)
                left = left[len(own or ()) :]
                self._add(group, name, marker, own, count)

    def close(self) -> None:
        """End the agents, and all their processes."""
        for actor in self._actors:
            actor.close()

    def _add(
        self, group: GroupSpec, name: str, marker: HostMarker, own: list[str] | None, count: int
    ) -> None:
        actor = ThreadActor({} if own is None else env.device_variables(own))
        self._actors.append(actor)
        host = RayHost(
            node_id=name,
            name=name,
            address=_ADDRESS,
            group=group.name,
            cpus=group.cpus or len(os.sched_getaffinity(0)),
            gpus=count,
        )
        facts = actor.inspect.remote(marker, host.address).result()
        self.agents.append(PlacedAgent(actor=actor, host=host, facts=facts))
