"""An agent on each host of a group, held there for as long as the job lasts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from headrace.cluster.agent import HostAgent, HostFacts
from headrace.cluster.connection import Host, living_hosts
from headrace.cluster.groups import LABEL, Group
from headrace.cluster.machine import Mark
from headrace.core.errors import LaunchError

_CALLS_AT_ONCE = 4  # to one agent: while it waits for news, it can be told to stop
_PLACE_S = 60.0
_LOOK_S = 60.0
_LEAVE_S = 5.0
_SLIVER = 0.001  # the least that Ray counts is 0.0001


class NotPlacedError(LaunchError):
    """Not all hosts can be had at the moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedAgent:
    """An agent, and where it is.

    Attributes:
        actor: Ray's handle of the HostAgent.
        host: Its host.
        facts: What it found there.
    """

    actor: Any
    host: Host
    facts: HostFacts


class Placement:
    """The agents of one group, one a host.

    Args:
        ray: Connected.
        group: The group; its hosts are there.
        hosts: Those of the cluster.
        mark: Left by this process.
        is_over: Asked meanwhile whether to wait no more.

    Attributes:
        agents: In the order of the hosts' addresses, the driver's own machine first.

    Raises:
        NotPlacedError: The hosts are taken by other jobs, or one has gone.
        LaunchError: An agent does not start.
    """

    def __init__(
        self,
        ray: ModuleType,
        group: Group,
        hosts: Sequence[Host],
        mark: Mark,
        *,
        is_over: Callable[[], bool],
    ) -> None:
        from ray.util.placement_group import placement_group

        self._ray = ray
        bundles = self._bundles(group, hosts)
        self._group = placement_group(
            bundles,
            strategy="STRICT_SPREAD",
            bundle_label_selector=[{LABEL: group.name}] * len(bundles),
        )
        self._actors: list[Any] = []
        try:
            self._wait(group, bundles, is_over)
            self._actors = [self._agent(number, bundle) for number, bundle in enumerate(bundles)]
            self.agents = self._placed(mark)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the agents, and all that they have started."""
        from ray.util.placement_group import remove_placement_group

        with suppress(Exception):  # an agent, or the whole cluster, may be gone
            leaving = [actor.leave.remote() for actor in self._actors]
            self._ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_S)
        with suppress(Exception):
            remove_placement_group(self._group)

    def _bundles(self, group: Group, hosts: Sequence[Host]) -> list[dict[str, float]]:
        """Return what each agent is to have of its host."""
        devices = _devices_of(group, hosts)
        return [{"CPU": 1, **({"GPU": devices} if devices else {})}] * group.hosts

    def _wait(
        self, group: Group, bundles: Sequence[dict[str, float]], is_over: Callable[[], bool]
    ) -> None:
        deadline_s = time.monotonic() + _PLACE_S
        while not self._group.wait(timeout_seconds=1):
            if time.monotonic() < deadline_s and not is_over():
                continue
            raise NotPlacedError(
                f"Group {group.name} has {group.hosts} hosts, but not all of them have a core and "
                f"{bundles[0].get('GPU', 0)} devices free: another job is on them. Wait for its "
                "end, or take other hosts."
            )

    def _agent(self, number: int, bundle: dict[str, float]) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=number
        )
        return (
            self._ray.remote(HostAgent)
            .options(
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                scheduling_strategy=strategy,
                max_concurrency=_CALLS_AT_ONCE,
            )
            .remote()
        )

    def _placed(self, mark: Mark) -> list[PlacedAgent]:
        nodes = {host.node_id: host for host in living_hosts(self._ray)}
        table = self._ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        actors = self._actors
        try:
            hosts = [nodes[table[bundle]] for bundle in range(len(actors))]
            asked = [
                actor.look.remote(mark, host.address)
                for actor, host in zip(actors, hosts, strict=True)
            ]
            found = self._ray.get(asked, timeout=_LOOK_S)
        except KeyError as error:
            raise NotPlacedError("A host went away as agents were being placed.") from error
        except self._ray.exceptions.RayError as error:
            raise LaunchError(
                f"No agent could be started on the hosts of the job: {error}. Headrace must be "
                "installed there, in the version that is here: pip install 'headrace[ray]'."
            ) from error
        agents = [
            PlacedAgent(actor=actor, host=host, facts=facts)
            for actor, host, facts in zip(actors, hosts, found, strict=True)
        ]
        return sorted(agents, key=lambda one: (not one.facts.is_drivers, one.host.name))


class DriverPlacement(Placement):
    """One agent for a script that uses Ray itself: it takes nothing that Ray gives out.

    It is on this process's own host where that is one of the group, else on the group's first.
    """

    def _bundles(self, group: Group, hosts: Sequence[Host]) -> list[dict[str, float]]:
        here = self._ray.get_runtime_context().get_node_id()
        of_group = [host for host in hosts if host.group == group.name]
        chosen = min(of_group, key=lambda host: (host.node_id != here, host.name), default=None)
        if chosen is None:
            raise NotPlacedError(f"Group {group.name} has lost its hosts.")
        return [{f"node:{chosen.address}": _SLIVER}]  # a resource that each of Ray's nodes has


def _devices_of(group: Group, hosts: Sequence[Host]) -> int:
    return min(host.gpus for host in hosts if host.group == group.name)
