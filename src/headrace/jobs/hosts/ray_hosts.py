"""The hosts of a job on a Ray cluster, an agent on each, and variables for the script's Ray.

A script's own `ray.init()` joins the job's cluster. Ray Train's workers and Ray Data's tasks are
processes of Ray, which do not inherit the script's environment. Ray gives them the runtime
environment in a variable, as it does for `ray job submit`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

from headrace.cluster.agent import HostProgram
from headrace.cluster.placement import (
    AgentPlacement,
    AgentsOnAllHosts,
    DriverAgentPlacement,
    NotPlacedError,
    PlacedAgent,
)
from headrace.cluster.ray_driver import RayHost, living_hosts, wait_for_hosts
from headrace.cluster.same_host import HostMarker, boot_id
from headrace.core import env
from headrace.core.console import print_status
from headrace.core.source_location import SITECUSTOMIZE_DIR
from headrace.jobs.hosts.cluster_options import ClusterOptions
from headrace.jobs.hosts.host_commands import HostCommands, WorkingDir
from headrace.jobs.hosts.host_installs import HostInstalls
from headrace.jobs.hosts.offload_setup import OffloadSetup
from headrace.jobs.hosts.rank_group import HostExit, RankGroupFactory, StopRequest
from headrace.platforms.instance_groups import GroupSpec
from headrace.platforms.sagemaker.folders import DEFAULT_BASE

_RECORDING_VARIABLES = (env.RECORDS_DIR.name, env.ATTEMPT.name)


def ray_variables(
    ray: ModuleType,
    working_dir: WorkingDir,
    recording: Mapping[str, str | None],
    *,
    is_here: bool,
    is_driver: bool,
    devices_reserved: bool,
) -> dict[str, str]:
    """Return the variables by which a script's own `ray.init()` finds cluster and folder.

    `recording` has the variables that have ranks recorded, if they are. A script under --driver
    runs once; a rank's own use of Ray stays unchanged. The ranks' agents reserve devices.
    """
    context = ray.get_runtime_context()
    recorded = {name: value for name in _RECORDING_VARIABLES if (value := recording.get(name))}
    env_vars: dict[str, str] = dict(recorded)
    if recorded:
        env_vars[env.RECORDS_BOOT.name] = boot_id()
    runtime_env: dict[str, Any] = {"env_vars": env_vars}
    package = context.runtime_env.get("working_dir")
    if package:
        runtime_env["working_dir"] = package  # already uploaded for the agents
        # Ray puts the folder itself on the path, and the host's own path after this.
        path = ":".join(filter(None, [SITECUSTOMIZE_DIR if recorded else "", working_dir.scripts]))
    else:  # all hosts are emulated on this machine
        path = env.pythonpath_with(SITECUSTOMIZE_DIR) if recorded else ""
    if path:
        env_vars[env.PYTHONPATH.name] = path
    variables = {env.RAY_ADDRESS.name: context.gcs_address}
    if devices_reserved:
        variables[env.DEVICES_RESERVED.name] = "1"
        variables[env.PYTHONPATH.name] = (
            env.pythonpath_with(SITECUSTOMIZE_DIR) if is_here else "{pythonpath}"
        )
    if (
        is_driver and env.RAY_JOB_CONFIG.get() is None
    ):  # else Ray runs this job, with its own config
        variables[env.RAY_JOB_CONFIG.name] = json.dumps({"runtime_env": runtime_env})
        variables[env.RAY_JOB_CONFIG_YIELDS.name] = "1"
    return variables


def warn_unrecorded_script(agent: PlacedAgent, profile: str) -> None:
    """Print that a script under --driver, or Ray Train's workers, are not recorded, if so.

    `agent` is that of the script's host. With the profile "off" nothing is said about records.
    """
    if not agent.facts.is_drivers and profile != "off":
        print_status(
            f"headrace: the script runs on {agent.host.name}, not where this command does, so "
            "nothing of it is recorded. Start the job there to have Ray Train's workers recorded.\n"
        )
    elif env.RAY_JOB_CONFIG.get() is not None:
        print_status(
            "headrace: this is a job of Ray's own (ray job submit), whose working_dir and "
            "variables hold for what the script starts: Ray Train's workers are not recorded, and "
            "Headrace passes no folder on to them\n"
        )


_MAX_LOSS_REPORT_S = 30.0  # Ray needs several failed health checks, seconds apart
_POLL_S = 0.5
_Placement = TypeVar("_Placement")


@dataclass(slots=True, kw_only=True)
class RayHosts:
    """The hosts of one job on a Ray cluster."""

    calls: Any  # the `ray` module, connected to the cluster
    options: ClusterOptions
    groups: Sequence[GroupSpec]  # those whose hosts run something
    programs: HostCommands
    working_dir: WorkingDir
    marker: HostMarker  # the driver's
    requirements: HostInstalls | None  # what hosts install first
    offloading: OffloadSetup | None
    profile: str  # how the job is recorded
    lost: set[str] = field(default_factory=set)  # Ray node ids of lost hosts

    def placed(self, stop: StopRequest) -> AgentPlacement | None:
        """Return an agent on each host, as soon as there are enough; None: the job is over."""
        return self._placed(stop, partial(self._place, stop))

    def prepare(
        self,
        agents: Sequence[PlacedAgent],
        rank_group: RankGroupFactory,
        stop: StopRequest,
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
            version=offloading.version if offloading is not None else 0,
        )  # fmt: skip

    def tend(self) -> None:
        """Maintain the offload hosts."""
        if self.offloading is not None:
            self.offloading.tend()

    def gone(self, agents: Sequence[PlacedAgent]) -> list[PlacedAgent]:
        """Return the agents of lost hosts, once the cluster reports them or after a time limit."""
        deadline_s = time.monotonic() + _MAX_LOSS_REPORT_S
        while agents:
            living = {host.node_id for host in living_hosts(self.calls)}
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
        self.programs.finish()

    def _place(self, stop: StopRequest, hosts: Sequence[RayHost]) -> AgentPlacement:
        placement = DriverAgentPlacement if self.options.driver else AgentPlacement
        return placement(self.calls, self.groups, hosts, self.marker, is_over=stop.is_requested)

    def _placed(
        self, stop: StopRequest, place: Callable[[Sequence[RayHost]], _Placement]
    ) -> _Placement | None:
        options = self.options
        wanted = [options.training, *options.others] if options.driver else self.groups
        deadline_s = time.monotonic() + options.hosts_s
        while not stop.is_requested():
            left_s = max(0.0, deadline_s - time.monotonic())
            hosts = wait_for_hosts(
                self.calls, wanted, longest_s=left_s, is_over=stop.is_requested,
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
                print_status(f"headrace: {error} Trying again.\n")
        return None

    def _install(
        self, requirements: HostInstalls, agents: Sequence[PlacedAgent],
        rank_group: RankGroupFactory, stop: StopRequest,
    ) -> list[HostExit]:  # fmt: skip
        if not self.options.driver:
            return requirements.install(agents, rank_group, stop)
        options = self.options
        names = {options.training.name, *(one.name for one in options.others)}
        everywhere = self._placed(
            stop, lambda hosts: AgentsOnAllHosts(self.calls, names, hosts, self.marker)
        )
        if everywhere is None:
            return []
        try:
            return requirements.install(everywhere.agents, rank_group, stop)
        finally:
            everywhere.close()

    def _can_bind_mount_everywhere(self, agents: Sequence[PlacedAgent]) -> bool:
        calls = [agent.actor.can_bind_mount.remote(DEFAULT_BASE) for agent in agents]
        return all(self.calls.get(calls))

    def _variables(self, agents: Sequence[PlacedAgent], agent: PlacedAgent) -> Mapping[str, str]:
        """Return the variables of a host's ranks for Ray, and for the offload hosts."""
        is_here = agent.facts.is_drivers
        found = ray_variables(
            self.calls, self.working_dir, self.programs.recorded() if is_here else {},
            is_here=is_here, is_driver=self.options.driver,
            devices_reserved=not self.options.driver
            and any(one.host.gpus for one in (agents if is_here else [agent])),
        )  # fmt: skip
        if self.options.driver and is_here:
            found[env.DRIVER_SCRIPT.name] = "1"
        if self.offloading is not None:
            found |= self.offloading.variables(is_here=is_here)
        return found
