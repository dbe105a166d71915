"""The hosts of a job: emulated or of a Ray cluster; an agent on each, and packages to install.

Emulated hosts have a loopback address each; all share the machine's cores, memory and files.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from headrace.cluster.agent import HostProgram
from headrace.cluster.host_identity import HostMarker
from headrace.cluster.ray_cluster import (
    AgentPlacement,
    AgentsOnAllHosts,
    AgentsWhereTheyStart,
    DriverAgentPlacement,
    NotPlacedError,
    PlacedAgent,
    RayHost,
    living_hosts,
    wait_for_hosts,
)
from headrace.cluster.ray_node import ThreadActor, ThreadCalls
from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import LaunchError
from headrace.core.process.mount_namespace import can_bind_mount
from headrace.core.world import usable_cores
from headrace.jobs.hosts.host_commands import HostCommands, HostInstalls, WorkingDir
from headrace.jobs.hosts.offload_setup import OffloadSetup
from headrace.jobs.hosts.rank_group import HostExit, HostStart, RankGroupFactory, StopRequest
from headrace.jobs.hosts.script_ray import (
    ScriptRayCluster,
    has_recorded_workers,
    ray_variables,
    warn_unrecorded_script,
)
from headrace.jobs.torchrun_args import ClusterOptions, emulated_devices
from headrace.platforms.instance_groups import GroupSpec
from headrace.platforms.sagemaker import DEFAULT_BASE

_ADDRESS = "127.0.0.1"


@dataclass(slots=True, kw_only=True)
class EmulatedHosts:
    """The emulated hosts of one job."""

    groups: Sequence[GroupSpec]  # the hosts of the first one share the machine's devices
    programs: HostCommands
    marker: HostMarker  # the driver's
    devices: Sequence[str]  # names of the machine's devices
    ray_api: ThreadCalls = field(default_factory=ThreadCalls)
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

    def recorders(self, agents: Sequence[PlacedAgent]) -> Sequence[HostStart]:
        """Return none: all hosts are on this machine, which is recorded."""
        del agents
        return ()

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
            count = group.gpus_a_host(len(devices) if group is groups[0] else 0)
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
            cpus=group.cpus or usable_cores(),
            gpus=count,
        )
        try:
            facts = actor.inspect.remote(marker, host.address).result(_ANSWER_S)
        except TimeoutError:
            raise LaunchError(
                f"{name}: its agent has not looked at this machine within {_ANSWER_S:.0f} s. See "
                "whether the disk of the working folder answers, and start the job again."
            ) from None
        self.agents.append(PlacedAgent(actor=actor, host=host, facts=facts))


_ANSWER_S = 120.0  # of an agent, at most
_MAX_LOSS_REPORT_S = 30.0  # Ray needs several failed health checks, seconds apart
_POLL_S = 0.5
_Placement = TypeVar("_Placement")


@dataclass(slots=True, kw_only=True)
class RayHosts:
    """The hosts of one job on a Ray cluster."""

    ray_api: Any  # the `ray` module, connected to the cluster
    options: ClusterOptions
    groups: Sequence[GroupSpec]  # those whose hosts run something
    programs: HostCommands
    working_dir: WorkingDir
    marker: HostMarker  # the driver's
    requirements: HostInstalls | None  # what hosts install first
    offloading: OffloadSetup | None
    profile: str  # how the job is recorded
    lost: set[str] = field(default_factory=set)  # Ray node ids of lost hosts
    # Of the records of hosts where a script under --driver has workers; see `RecordsLink`
    link: str = field(default_factory=lambda: secrets.token_hex(16))
    recording: AgentsWhereTheyStart | None = None  # of these hosts

    def placed(self, stop: StopRequest) -> AgentPlacement | None:
        """Return an agent on each host, as soon as there are enough; None: the job is over."""
        return self._placed(stop, partial(self._place, stop))

    def prepare(
        self, agents: Sequence[PlacedAgent], rank_group: RankGroupFactory, stop: StopRequest
    ) -> list[HostExit]:
        """Install the requirements where the script or Ray runs something; set the layout."""
        if self.requirements is not None:
            failed = self._install(self.requirements, agents, rank_group, stop)
            if failed or stop.is_requested():
                return failed
        if self.offloading is not None:
            self.offloading.serve(agents)
        self.programs.plan(agents, lambda: self._can_bind_mount_everywhere(agents))
        return []

    def program(
        self, agents: Sequence[PlacedAgent], agent: PlacedAgent, number: int
    ) -> HostProgram:
        """Return the program of a host."""
        if self.options.driver and number == 0:
            warn_unrecorded_script(agents[0], self.profile)
        offloading = self.offloading
        return self.programs.program(
            agents, agent, number,
            variables=self._variables(agents, agent),
            files=offloading.files_of(agent) if offloading is not None else {},
            version=offloading.fleet.version if offloading is not None else 0,
        )  # fmt: skip

    def recorders(self, agents: Sequence[PlacedAgent]) -> Sequence[HostStart]:
        """Return those of hosts on other machines, where a script under --driver has workers."""
        self._close_recorders()
        if not (self.options.driver and has_recorded_workers(agents[0], self.profile)):
            return ()
        names = self._group_names()
        hosts = [
            host
            for host in living_hosts(self.ray_api)
            if host.group in names and host.node_id not in {agents[0].host.node_id, *self.lost}
        ]
        self.recording = AgentsWhereTheyStart(self.ray_api, hosts, self.marker)
        for name, reason in self.recording.why_not.items():
            print_status(f"{name}: what the script has Ray start there is not recorded: {reason}")
        return [
            (agent, self.programs.recorder(agent, self.link)) for agent in self.recording.agents
        ]

    def tend(self) -> None:
        """Maintain the offload hosts."""
        if self.offloading is not None:
            self.offloading.tend()

    def gone(self, agents: Sequence[PlacedAgent]) -> list[PlacedAgent]:
        """Return the agents of lost hosts, once the cluster reports them or after a time limit."""
        deadline_s = time.monotonic() + _MAX_LOSS_REPORT_S
        while agents:
            living = {host.node_id for host in living_hosts(self.ray_api)}
            gone = [agent for agent in agents if agent.host.node_id not in living]
            if gone or time.monotonic() > deadline_s:
                self.lost |= {agent.host.node_id for agent in gone}
                return gone
            time.sleep(_POLL_S)
        return []

    def close(self) -> None:
        """Leave the offload hosts, and close the records."""
        if self.offloading is not None:
            self.offloading.close()
        self._close_recorders()
        self.programs.finish()

    def _close_recorders(self) -> None:
        if self.recording is not None:
            self.recording.close()
            self.recording = None

    def _group_names(self) -> set[str]:
        """Return the names of all groups that were named for a script under --driver."""
        return {self.options.training.name, *(one.name for one in self.options.others)}

    def _place(self, stop: StopRequest, hosts: Sequence[RayHost]) -> AgentPlacement:
        placement = DriverAgentPlacement if self.options.driver else AgentPlacement
        return placement(self.ray_api, self.groups, hosts, self.marker, is_over=stop.is_requested)

    def _placed(
        self, stop: StopRequest, place: Callable[[Sequence[RayHost]], _Placement]
    ) -> _Placement | None:
        options = self.options
        wanted = [options.training, *options.others] if options.driver else self.groups
        deadline_s = time.monotonic() + options.hosts_s
        while not stop.is_requested():
            left_s = max(0.0, deadline_s - time.monotonic())
            hosts = wait_for_hosts(
                self.ray_api, wanted, longest_s=left_s, is_over=stop.is_requested,
                without=self.lost,
            )  # fmt: skip
            if stop.is_requested():
                break
            try:
                return place(hosts)
            except NotPlacedError as error:
                # A host may just have been lost, or another job may be about to end.
                if time.monotonic() > deadline_s and not stop.is_requested():
                    raise
                print_status(f"{error} Trying again.")
        return None

    def _install(
        self, requirements: HostInstalls, agents: Sequence[PlacedAgent],
        rank_group: RankGroupFactory, stop: StopRequest,
    ) -> list[HostExit]:  # fmt: skip
        if not self.options.driver:
            return requirements.install(agents, rank_group, stop)
        names = self._group_names()
        everywhere = self._placed(
            stop, lambda hosts: AgentsOnAllHosts(self.ray_api, names, hosts, self.marker)
        )
        if everywhere is None:
            return []
        try:
            return requirements.install(everywhere.agents, rank_group, stop)
        finally:
            everywhere.close()

    def _can_bind_mount_everywhere(self, agents: Sequence[PlacedAgent]) -> bool:
        calls = [agent.actor.can_bind_mount.remote(DEFAULT_BASE) for agent in agents]
        try:
            return all(self.ray_api.get(calls, timeout=_ANSWER_S))
        except self.ray_api.exceptions.GetTimeoutError:
            names = ", ".join(agent.host.name for agent in agents)
            raise LaunchError(
                f"The agents on {names} have not answered within {_ANSWER_S:.0f} s whether folders "
                "can be mounted there. Look at `ray status` and at the load of these hosts."
            ) from None

    def _variables(self, agents: Sequence[PlacedAgent], agent: PlacedAgent) -> Mapping[str, str]:
        """Return the variables of a host's ranks for Ray, and for the offload hosts."""
        is_here = agent.facts.is_drivers
        found = ray_variables(
            self.ray_api, self.working_dir,
            self.programs.recorded(agents) | {env.RECORDS_LINK.name: self.link} if is_here else {},
            is_here=is_here, is_driver=self.options.driver,
            devices_reserved=not self.options.driver
            and any(one.host.gpus for one in (agents if is_here else [agent])),
        )  # fmt: skip
        if self.options.driver and is_here:
            found[env.DRIVER_SCRIPT.name] = "1"
        if self.offloading is not None:
            found |= self.offloading.variables(is_here=is_here)
        return found
