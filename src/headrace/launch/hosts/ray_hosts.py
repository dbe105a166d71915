"""The hosts of a job on a Ray cluster: Ray places and watches over one agent on each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

from headrace.cluster.agent import Program
from headrace.cluster.connection import Host, living_hosts, wait_for_hosts
from headrace.cluster.machine import Mark
from headrace.cluster.placement import (
    AgentsEverywhere,
    DriverPlacement,
    NotPlacedError,
    PlacedAgent,
    Placement,
)
from headrace.contracts.groups import Group
from headrace.contracts.sagemaker_folders import USUAL_BASE
from headrace.core import env
from headrace.launch.hosts.cluster_flags import ClusterOptions
from headrace.launch.hosts.gang import HostEnd, StopRequest
from headrace.launch.hosts.offloading import Offloading
from headrace.launch.hosts.programs import Programs
from headrace.launch.hosts.ray_scripts import ray_variables, tell_unrecorded
from headrace.launch.hosts.starts import GangOf
from headrace.launch.hosts.travelling import Luggage
from headrace.launch.requirements.on_hosts import Requirements
from headrace.launch.told import tell

_GONE_S = 30.0  # Ray looks for lost hosts every few seconds, several times
_LOOK_EVERY_S = 0.5
_Placed = TypeVar("_Placed")


class RayHosts:
    """The hosts of one job.

    Args:
        ray: Connected.
        options: What is asked of the cluster.
        groups: Those of the groups whose hosts run something.
        programs: What hosts run.
        luggage: The job's folder.
        mark: Left by this process.
        requirements: What hosts install first; None: nothing.
        offloading: The hosts that make batches; None: none do.
        profile: How the job is recorded.

    Attributes:
        calls: Ray.
    """

    def __init__(
        self, ray: ModuleType, options: ClusterOptions, groups: Sequence[Group],
        programs: Programs, luggage: Luggage, mark: Mark, *, requirements: Requirements | None,
        offloading: Offloading | None, profile: str,
    ) -> None:  # fmt: skip
        self.calls: Any = ray
        self._options = options
        self._groups = groups
        self._programs = programs
        self._luggage = luggage
        self._mark = mark
        self._requirements = requirements
        self._offloading = offloading
        self._profile = profile
        self._lost: set[str] = set()  # hosts, by Ray's number

    def placed(self, stop: StopRequest) -> Placement | None:
        """Return an agent on each host, as soon as there are enough; None: the job is over."""
        return self._placed(stop, partial(self._place, stop))

    def prepare(
        self, agents: Sequence[PlacedAgent], gang_of: Callable[[Sequence[PlacedAgent]], GangOf],
        stop: StopRequest,
    ) -> list[HostEnd]:  # fmt: skip
        """Install what the job needs wherever the script runs, or has Ray run something."""
        if self._requirements is not None:
            unwell = self._install(self._requirements, agents, gang_of, stop)
            if unwell or stop.is_asked():
                return unwell
        if self._offloading is not None:
            self._offloading.serve(agents)
        self._programs.plan(agents, lambda: self._may_place(agents))
        return []

    def program(self, agents: Sequence[PlacedAgent], agent: PlacedAgent, number: int) -> Program:
        """Return what a host is to run."""
        if self._options.driver and number == 0:
            tell_unrecorded(agents[0], self._profile)
        offloading = self._offloading
        return self._programs.program(
            agents, agent, number,
            variables=self._variables(agents, agent),
            files=offloading.files_of(agent) if offloading is not None else {},
            version=offloading.version if offloading is not None else 0,
        )  # fmt: skip

    def tend(self) -> None:
        """Look after the hosts that make batches."""
        if self._offloading is not None:
            self._offloading.tend()

    def gone(self, agents: Sequence[PlacedAgent]) -> list[PlacedAgent]:
        """Return those whose hosts are gone; the cluster takes its time to say so."""
        deadline_s = time.monotonic() + _GONE_S
        while agents:
            there = {host.node_id for host in living_hosts(self.calls)}
            gone = [agent for agent in agents if agent.host.node_id not in there]
            if gone or time.monotonic() > deadline_s:
                self._lost |= {agent.host.node_id for agent in gone}
                return gone
            time.sleep(_LOOK_EVERY_S)
        return []

    def close(self) -> None:
        """Leave the hosts that make batches, and close what was recorded."""
        if self._offloading is not None:
            self._offloading.close()
        self._programs.finish()

    def _place(self, stop: StopRequest, hosts: Sequence[Host]) -> Placement:
        placement = DriverPlacement if self._options.driver else Placement
        return placement(self.calls, self._groups, hosts, self._mark, is_over=stop.is_asked)

    def _placed(
        self, stop: StopRequest, place: Callable[[Sequence[Host]], _Placed]
    ) -> _Placed | None:
        options = self._options
        wanted = [options.training, *options.others] if options.driver else self._groups
        deadline_s = time.monotonic() + options.hosts_s
        while not stop.is_asked():
            left_s = max(0.0, deadline_s - time.monotonic())
            hosts = wait_for_hosts(
                self.calls, wanted, longest_s=left_s, tell=tell, without=self._lost,
                is_over=stop.is_asked,
            )  # fmt: skip
            if stop.is_asked():
                break
            try:
                return place(hosts)
            except NotPlacedError as error:
                # A host may have gone a moment ago, or another job be about to end.
                if time.monotonic() > deadline_s and not stop.is_asked():
                    raise
                tell(f"headrace: {error} Trying again.\n")
        return None

    def _install(
        self, requirements: Requirements, agents: Sequence[PlacedAgent],
        gang_of: Callable[[Sequence[PlacedAgent]], GangOf], stop: StopRequest,
    ) -> list[HostEnd]:  # fmt: skip
        if not self._options.driver:
            return requirements.install(agents, gang_of(agents), stop)
        options = self._options
        names = {options.training.name, *(one.name for one in options.others)}
        everywhere = self._placed(
            stop, lambda hosts: AgentsEverywhere(self.calls, names, hosts, self._mark)
        )
        if everywhere is None:
            return []
        try:
            agents = everywhere.agents
            return requirements.install(agents, gang_of(agents), stop)
        finally:
            everywhere.close()

    def _may_place(self, agents: Sequence[PlacedAgent]) -> bool:
        asked = [agent.actor.may_place.remote(USUAL_BASE) for agent in agents]
        return all(self.calls.get(asked))

    def _variables(self, agents: Sequence[PlacedAgent], agent: PlacedAgent) -> Mapping[str, str]:
        """Return what a host's ranks have for Ray, and for the hosts that make batches."""
        is_here = agent.facts.is_drivers
        found = ray_variables(
            self.calls, self._luggage, self._programs.recorded() if is_here else {},
            is_here=is_here, drives=self._options.driver,
            devices_held=not self._options.driver
            and any(one.host.gpus for one in (agents if is_here else [agent])),
        )  # fmt: skip
        if self._options.driver and is_here:
            found[env.DRIVES.name] = "1"
        if self._offloading is not None:
            found |= self._offloading.variables(is_here=is_here)
        return found
