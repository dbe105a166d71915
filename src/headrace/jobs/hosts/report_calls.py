"""The calls by which agents report: which have returned, and of which hosts nothing is heard."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

from headrace.cluster.ray_cluster import PlacedAgent

_POLL_S = 0.1


class AgentCalls(Protocol):
    """The calls of agents: Ray, or a stand-in where agents live in this process."""

    @property
    def exceptions(self) -> Any:
        """The namespace of RayError and ActorUnavailableError."""

    def wait(self, calls: list[Any], *, num_returns: int, timeout: float) -> tuple[Any, Any]:
        """Wait until a call has returned, and return the finished and the pending calls."""

    def get(self, call: Any) -> Any:
        """Return a call's result, or raise its error."""


class ReportCalls:
    """The calls that are under way, one a host at most."""

    def __init__(self, ray_api: AgentCalls) -> None:
        self._ray = ray_api
        self._waiting: dict[Any, PlacedAgent] = {}
        self._heard_s: dict[str, float] = {}

    @property
    def agents(self) -> list[PlacedAgent]:
        """The agents that are to report."""
        return list(self._waiting.values())

    def begin(self, agent: PlacedAgent, call: Any) -> None:
        """Wait for a call of an agent, too."""
        self._waiting[call] = agent
        self._heard_s.setdefault(agent.host.node_id, time.monotonic())

    def returned(self) -> Iterator[tuple[PlacedAgent, Any]]:
        """Yield agents and their calls that have returned, after a wait for one of them."""
        finished, _ = self._ray.wait(list(self._waiting), num_returns=1, timeout=_POLL_S)
        for call in finished:
            yield self._waiting.pop(call), call

    def heard(self, agent: PlacedAgent) -> None:
        """Note that a host lives."""
        self._heard_s[agent.host.node_id] = time.monotonic()

    def give_up_silent(self, longest_s: float) -> Iterator[PlacedAgent]:
        """Yield agents of which nothing was heard for longer; their calls are waited for no more.

        Where this process itself stood still, as with its host or its disk, reports are there.
        """
        now_s = time.monotonic()
        for call, agent in list(self._waiting.items()):
            if now_s - self._heard_s[agent.host.node_id] > longest_s:
                finished, _ = self._ray.wait([call], num_returns=1, timeout=0)
                if not finished:
                    del self._waiting[call]
                    yield agent
