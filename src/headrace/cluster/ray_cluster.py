"""This process as the driver of a Ray cluster: connection, hosts, placement of agents on them.

Agents are placed by Ray's placement groups or by node affinity.
"""

from __future__ import annotations

import functools
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from headrace.cluster.agent import HostAgent, HostFacts
from headrace.cluster.host_identity import HostMarker
from headrace.core.console import print_status
from headrace.core.errors import LaunchError, UsageError
from headrace.platforms.instance_groups import GROUP_LABEL, GroupSpec


def import_ray() -> ModuleType:
    """Return the `ray` module; raises UsageError, with the remedy, where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise _missing_ray(str(error)) from error
    return ray


def check_ray_is_installed() -> None:
    """Raise UsageError, with the remedy, where Ray is not installed; nothing is imported."""
    if find_spec("ray") is None:
        raise _missing_ray("No module named 'ray'")


def _missing_ray(reason: str) -> UsageError:
    return UsageError(
        f"A cluster needs Ray, which cannot be imported ({reason}). "
        "Run `pip install 'headrace[ray]'`, on every host."
    )


_CONNECT_S = 10.0
_POLL_S = 0.5
_ID_CHARACTERS = 8  # of a node's id, which has 56
_STATUS_INTERVAL_S = 10.0
_EXCLUDED_PATHS = (".git", ".venv", "__pycache__", "runs")
"""What is not copied with the job's folder, besides what its .gitignore names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayHost:
    """A living host of the cluster, with the cores and devices that Ray schedules."""

    node_id: str
    name: str  # its node name, or its address; no two of the cluster's living hosts have one
    address: str  # by which other hosts reach it
    group: str | None  # None without a label
    cpus: int
    gpus: int


@contextmanager
def ray_connection(address: str, *, folder: str | None = None) -> Iterator[ModuleType]:
    """Connect this process to a cluster for the block; yields the `ray` module.

    The address is HOST:PORT, `auto` for the cluster that this host belongs to, or ray://HOST:PORT.
    Actors on other hosts work in a copy of `folder`. Raises UsageError where Ray is not installed,
    LaunchError where there is no cluster, or it rejects this process.
    """
    ray = import_ray()
    _check_reachable(address)
    job_folder = {"working_dir": folder, "excludes": list(_EXCLUDED_PATHS)} if folder else {}
    try:
        _connect(ray, address, job_folder)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _no_cluster(address, error) from error
    try:
        yield ray
    finally:
        ray.shutdown()


_TRIES = 3
"""A head starts a process for each client, and waits 30 s for it: not enough on full cores."""


def _connect(ray: ModuleType, address: str, job_folder: dict[str, Any]) -> None:
    """Have Ray connect this process; as a client of a head, up to three times."""
    tries = _TRIES if address.startswith("ray://") else 1
    for number in range(1, tries + 1):
        try:
            ray.init(
                address=address, log_to_driver=False, logging_level="ERROR", runtime_env=job_folder
            )
        except ConnectionError as error:
            ray.shutdown()
            if number == tries:
                raise
            print_status(f"{address} took no client ({_reason(error)}); once more.")
        else:
            return


def _reason(error: Exception) -> str:
    """Return an error's first line, or its last where that one only announces a traceback."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return (lines[-1] if lines[0].endswith(":") else lines[0]).strip().rstrip(".:")


def _check_reachable(address: str) -> None:
    """Raise LaunchError where nothing accepts a connection: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return  # for Ray to resolve, such as "auto"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> LaunchError:
    return LaunchError(
        f"There is no Ray cluster at {address} that can be used: {_reason(error)}. Start one "
        "(docs/clusters.md), leave out --address to try the job on this machine, or set "
        "RAY_AUTH_TOKEN_PATH to the cluster's token. Where the folder that goes along is meant, "
        "name what stays in .gitignore."
    )


def living_hosts(ray: ModuleType) -> list[RayHost]:
    """Return the hosts that are alive in the cluster now."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    times = Counter(map(_given_name, nodes))
    return [
        RayHost(
            node_id=node["NodeID"],
            name=_own_name(node, is_shared=times[_given_name(node)] > 1),
            address=node["NodeManagerAddress"],
            group=node.get("Labels", {}).get(GROUP_LABEL),
            cpus=int(node["Resources"].get("CPU", 0)),
            gpus=int(node["Resources"].get("GPU", 0)),
        )
        for node in nodes
    ]


def _given_name(node: Mapping[str, Any]) -> str:
    return str(node.get("NodeName") or node["NodeManagerAddress"])


def _own_name(node: Mapping[str, Any], *, is_shared: bool) -> str:
    """Return a name that no other host has: Ray lets several have that of `--node-name`."""
    name = _given_name(node)
    return f"{name}-{node['NodeID'][:_ID_CHARACTERS]}" if is_shared else name


def wait_for_hosts(
    ray: ModuleType,
    groups: Sequence[GroupSpec],
    *,
    longest_s: float,
    is_over: Callable[[], bool],
    without: AbstractSet[str] = frozenset(),
) -> list[RayHost]:
    """Wait until every group has its hosts, print what is missing, and return the cluster's hosts.

    LaunchError is raised after `longest_s`. Once `is_over`, the hosts of that moment are returned.
    `without` has the node ids of hosts that are lost, though the cluster may not know it yet.
    """
    deadline_s = time.monotonic() + longest_s
    next_status_s = time.monotonic() + _STATUS_INTERVAL_S
    while True:
        hosts = [host for host in living_hosts(ray) if host.node_id not in without]
        missing = _describe_missing(groups, hosts)
        if not missing or is_over():
            return hosts
        now_s = time.monotonic()
        if now_s > deadline_s:
            named = [f"{host.name} ({host.group or 'no group'})" for host in hosts]
            there = ", ".join(named) or "none"
            raise LaunchError(
                f"The cluster has too few hosts after {longest_s:.0f} s: {missing}. A host joins a "
                f"group by `ray start --labels {GROUP_LABEL}=GROUP`; what is there: {there}."
            )
        if now_s > next_status_s:
            print_status(f"waiting for hosts: {missing}")
            next_status_s += _STATUS_INTERVAL_S
        time.sleep(_POLL_S)


def _describe_missing(groups: Sequence[GroupSpec], hosts: Sequence[RayHost]) -> str:
    found = {group.name: sum(host.group == group.name for host in hosts) for group in groups}
    return ", ".join(
        f"group {group.name} has {found[group.name]} of {group.hosts}"
        for group in groups
        if found[group.name] < group.hosts
    )


_MAX_CONCURRENT_CALLS = 4  # to one agent: `stop` while `report` waits
_PLACE_S = 60.0
_INSPECT_S = 60.0
_REMOVE_S = 5.0
_SMALLEST_AMOUNT = 0.001  # the least that Ray counts is 0.0001
_NODE_ID = "ray.io/node-id"  # a label that Ray gives each of its nodes
_HOST_LOST = "A host went away as agents were being placed."
_Bundle = dict[str, float]  # amounts by resource
_AgentRequest = tuple[_Bundle, dict[str, str]]  # with the labels of the host


class NotPlacedError(LaunchError):
    """Not all hosts are free at the moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedAgent:
    """An agent and its host."""

    actor: Any  # Ray's handle of the HostAgent
    host: RayHost
    facts: HostFacts


def start_agent(ray: ModuleType, strategy: Any, *, cpus: float = 0, gpus: float = 0) -> Any:
    """Have Ray start a HostAgent by a scheduling strategy, and return its handle."""
    actor_class = ray.remote(HostAgent).options(
        num_cpus=cpus,
        num_gpus=gpus,
        scheduling_strategy=strategy,
        max_concurrency=_MAX_CONCURRENT_CALLS,
    )
    return actor_class.remote()


def node_affinity(host: RayHost) -> Any:
    """Return Ray's scheduling strategy for that host alone."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(host.node_id, soft=False)


def end_agents(ray: ModuleType, actors: Sequence[Any]) -> None:
    """Have agents remove their folders, and end them and the processes that they started."""
    with suppress(Exception):  # an agent, or the whole cluster, may be gone
        removals = [actor.remove_folder.remote() for actor in actors]
        ray.wait(removals, num_returns=len(removals), timeout=_REMOVE_S)
    for actor in actors:
        with suppress(Exception):
            ray.kill(actor)


def end_agents_in_background(ray: ModuleType, actors: Sequence[Any]) -> None:
    """Do the same in a thread: agents have some seconds to remove their folders, with keys."""
    threading.Thread(target=end_agents, args=(ray, actors), name="end agents", daemon=True).start()


class AgentPlacement:
    """The agents of some groups, one a host, in a placement group.

    The cluster has all hosts of the groups. `agents` are sorted by host name, those on the driver's
    own machine first. Raises NotPlacedError (other jobs have the hosts, or one is gone),
    LaunchError (an agent does not start).
    """

    def __init__(
        self,
        ray: ModuleType,
        groups: Sequence[GroupSpec],
        hosts: Sequence[RayHost],
        marker: HostMarker,
        *,
        is_over: Callable[[], bool],
    ) -> None:
        from ray.util.placement_group import placement_group

        self._ray = ray
        requests = [each for group in groups for each in self._requests(group, hosts)]
        bundles = [bundle for bundle, _ in requests]
        self._group = placement_group(
            bundles,
            strategy="STRICT_SPREAD",
            bundle_label_selector=[labels for _, labels in requests],
        )
        self._actors: list[Any] = []
        try:
            self._wait(groups, bundles, is_over)
            self._actors = [self._agent(number, bundle) for number, bundle in enumerate(bundles)]
            self.agents = self._inspect(marker)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the agents and the processes that they started."""
        end_agents(self._ray, self._actors)
        with suppress(Exception):
            self._ray.util.remove_placement_group(self._group)

    def _requests(self, group: GroupSpec, hosts: Sequence[RayHost]) -> list[_AgentRequest]:
        """Return for each agent a core and the devices of its host, and the host's labels."""
        devices = min(host.gpus for host in hosts if host.group == group.name)
        bundle: _Bundle = {"CPU": 1, "GPU": devices} if devices else {"CPU": 1}
        return [(bundle, {GROUP_LABEL: group.name})] * group.hosts

    def _wait(
        self, groups: Sequence[GroupSpec], bundles: Sequence[_Bundle], is_over: Callable[[], bool]
    ) -> None:
        deadline_s = time.monotonic() + _PLACE_S
        while not self._group.wait(timeout_seconds=1):
            if time.monotonic() < deadline_s and not is_over():
                continue
            present = " and ".join(f"group {one.name} has {one.hosts} hosts" for one in groups)
            raise NotPlacedError(
                f"{present[0].upper()}{present[1:]}, but {self._lack(bundles)}. Wait for its end, "
                "or take other hosts."
            )

    def _lack(self, bundles: Sequence[_Bundle]) -> str:
        devices = f" and {bundles[0]['GPU']} devices" if "GPU" in bundles[0] else ""
        return f"not all of them have a core{devices} free: another job is on them"

    def _agent(self, number: int, bundle: _Bundle) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=number
        )
        cpus, gpus = bundle.get("CPU", 0), bundle.get("GPU", 0)
        return start_agent(self._ray, strategy, cpus=cpus, gpus=gpus)

    def _inspect(self, marker: HostMarker) -> list[PlacedAgent]:
        nodes = {host.node_id: host for host in living_hosts(self._ray)}
        table = self._ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        try:
            hosts = [nodes[table[bundle]] for bundle in range(len(self._actors))]
        except KeyError as error:
            raise NotPlacedError(_HOST_LOST) from error
        return _inspected_agents(self._ray, self._actors, hosts, marker)


class DriverAgentPlacement(AgentPlacement):
    """One agent for a script that uses Ray itself: it takes none of the cores and devices.

    It is on this process's host if that belongs to the group, else on the group's first.
    """

    def _requests(self, group: GroupSpec, hosts: Sequence[RayHost]) -> list[_AgentRequest]:
        here = self._ray.get_runtime_context().get_node_id()
        of_group = [host for host in hosts if host.group == group.name]
        if not of_group:
            raise NotPlacedError(f"Group {group.name} has lost its hosts.")
        host = min(of_group, key=lambda host: (host.node_id != here, host.name))
        # Each Ray node has a resource of this name; emulated hosts share an address.
        bundle = {f"node:{host.address}": _SMALLEST_AMOUNT}
        return [(bundle, {GROUP_LABEL: group.name, _NODE_ID: host.node_id})]

    def _lack(self, bundles: Sequence[_Bundle]) -> str:
        return f"Ray places nothing on the one that is to run the script ({', '.join(bundles[0])})"


class AgentsOnAllHosts:
    """An agent on every host of the named groups, which takes none of the cores and devices.

    Order and errors are those of `AgentPlacement`.
    """

    def __init__(
        self, ray: ModuleType, groups: Collection[str], hosts: Sequence[RayHost], marker: HostMarker
    ) -> None:
        chosen = [host for host in hosts if host.group in groups]
        actors = [start_agent(ray, node_affinity(host)) for host in chosen]
        self.close = functools.partial(end_agents, ray, actors)
        try:
            self.agents = _inspected_agents(ray, actors, chosen, marker)
        except BaseException:
            self.close()
            raise


class AgentsWhereTheyStart:
    """An agent on each of some hosts of other machines than the driver's, if one starts there.

    It takes none of the cores and devices. `why_not` has a reason for each host without one, by
    name, of those on other machines.
    """

    def __init__(self, ray: ModuleType, hosts: Sequence[RayHost], marker: HostMarker) -> None:
        self._ray = ray
        self._actors: list[Any] = []
        self.agents: list[PlacedAgent] = []
        self.why_not: dict[str, str] = {}
        calls: dict[Any, tuple[Any, RayHost]] = {}
        for host in hosts:
            actor = start_agent(ray, node_affinity(host))
            self._actors.append(actor)
            calls[actor.inspect.remote(marker, host.address)] = actor, host
        answered, late = ray.wait(list(calls), num_returns=len(calls), timeout=_INSPECT_S)
        for call in late:
            self.why_not[calls[call][1].name] = f"no agent has started within {_INSPECT_S:.0f} s"
        for call in answered:
            self._add(call, *calls[call])
        self.agents.sort(key=lambda one: one.host.name)

    def close(self) -> None:
        """End the agents and the processes that they started."""
        end_agents(self._ray, self._actors)

    def _add(self, call: Any, actor: Any, host: RayHost) -> None:
        try:
            facts: HostFacts = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            self.why_not[host.name] = _reason(error)
            return
        if not facts.is_drivers:
            self.agents.append(PlacedAgent(actor=actor, host=host, facts=facts))


def _inspected_agents(
    ray: ModuleType, actors: Sequence[Any], hosts: Sequence[RayHost], marker: HostMarker
) -> list[PlacedAgent]:
    """Return the agents with their hosts' facts, sorted, once all have reported these."""
    try:
        calls = [
            actor.inspect.remote(marker, host.address)
            for actor, host in zip(actors, hosts, strict=True)
        ]
        found = ray.get(calls, timeout=_INSPECT_S)
    except ray.exceptions.RayError as error:
        if {host.node_id for host in hosts} - {host.node_id for host in living_hosts(ray)}:
            raise NotPlacedError(_HOST_LOST) from error
        raise LaunchError(
            f"No agent could be started on the hosts of the job: {error}. Headrace must be "
            "installed there, in the version that is here: pip install 'headrace[ray]'."
        ) from error
    agents = [
        PlacedAgent(actor=actor, host=host, facts=facts)
        for actor, host, facts in zip(actors, hosts, found, strict=True)
    ]
    return sorted(agents, key=lambda one: (not one.facts.is_drivers, one.host.name))
