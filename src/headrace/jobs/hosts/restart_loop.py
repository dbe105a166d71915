"""The restarts of a job's ranks on several hosts, as long as its budgets last.

A rank that fails ends the ranks of all hosts; then all of them are started anew, as often as
--max-restarts says. A host that is lost counts on its own: --max-preemptions.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headrace.cluster.agent import HostProgram
from headrace.cluster.placement import PlacedAgent
from headrace.core.console import print_status
from headrace.core.errors import LaunchError, UsageError
from headrace.core.process.supervision import STOP_SIGNALS, exit_code_of
from headrace.jobs.failure import first_failure
from headrace.jobs.hosts.driver_protocol import refusal_messages
from headrace.jobs.hosts.rank_group import AgentCalls, HostExit, RankGroup, StopRequest
from headrace.jobs.output.terminal_output import HostOutput

_AGENTS_EXTRA_S = 10.0  # torchrun needs some time itself after its ranks have ended

RankGroupFactory = Callable[[Callable[[str, dict[str, Any]], object] | None], RankGroup]


class PlacedAgents(Protocol):
    """Agents that are there until they are closed."""

    agents: list[PlacedAgent]

    def close(self) -> None:
        """End the agents, and all that they have started."""


class HostProvider(Protocol):
    """The hosts of a job, wherever they are."""

    @property
    def calls(self) -> AgentCalls:
        """What calls their agents."""

    def placed(self, stop: StopRequest) -> PlacedAgents | None:
        """Return an agent on each host, as soon as there are enough; None: the job is over."""

    def prepare(
        self,
        agents: Sequence[PlacedAgent],
        rank_group_factory: Callable[[Sequence[PlacedAgent]], RankGroupFactory],
        stop: StopRequest,
    ) -> list[HostExit]:
        """Have hosts get what the job needs there; return how it ended where it did not."""

    def program(
        self, agents: Sequence[PlacedAgent], agent: PlacedAgent, number: int
    ) -> HostProgram:
        """Return what a host is to run in a start of the ranks, `number` counted from 0."""

    def tend(self) -> None:
        """Look after what else there is; called often."""

    def gone(self, agents: Sequence[PlacedAgent]) -> list[PlacedAgent]:
        """Return those of some agents whose hosts are gone, and count on these no more."""

    def close(self) -> None:
        """End what else there is."""


class RestartLoop:
    """Starts ranks until they end well or nothing is left of the budgets.

    Args:
        hosts: The job's.
        shown: Shows what hosts say.
        logs: Where logs go that hosts keep for themselves.
        grace_s: How long ranks that were asked to stop may take.
        max_restarts: How often they are started anew after a failure.
        max_preemptions: Likewise after the loss of a host; -1: any number.
    """

    def __init__(
        self,
        hosts: HostProvider,
        shown: HostOutput,
        logs: Any,
        *,
        grace_s: float,
        max_restarts: int,
        max_preemptions: int,
    ) -> None:
        self._hosts = hosts
        self._shown = shown
        self._logs = logs
        self._grace_s = grace_s
        self._restarts_left = max_restarts
        self._preemptions_left = max_preemptions

    def run(self, stop: StopRequest) -> int:
        """Run the job and return its exit code."""
        number = 0
        try:
            while True:
                ends = self._start(number, stop)
                if stop.number is not None:
                    return 128 + stop.number
                if all(end.returncode == 0 for end in ends):
                    return 0
                if not self._may_restart(ends):
                    return _exit_code(ends)
                number += 1
        finally:
            for stopping in STOP_SIGNALS:
                signal.signal(stopping, signal.SIG_IGN)
            self._hosts.close()
            self._shown.close()

    def _start(self, number: int, stop: StopRequest) -> list[HostExit]:
        placed = self._hosts.placed(stop)
        if placed is None:
            return []
        try:
            unwell = self._hosts.prepare(placed.agents, self._rank_group_factory, stop)
            if unwell or stop.is_requested():
                return unwell
            programs = [
                self._hosts.program(placed.agents, agent, number) for agent in placed.agents
            ]
            return self._rank_group_factory(placed.agents)(None).run(programs, stop)
        finally:
            placed.close()

    def _rank_group_factory(self, agents: Sequence[PlacedAgent]) -> RankGroupFactory:
        def rank_group(hear: Callable[[str, dict[str, Any]], object] | None) -> RankGroup:
            return RankGroup(
                self._hosts.calls,
                agents,
                grace_s=self._grace_s + _AGENTS_EXTRA_S,
                logs=self._logs,
                shown=self._shown,
                meanwhile=self._hosts.tend,
                hear=hear,
            )

        return rank_group

    def _may_restart(self, ends: Sequence[HostExit]) -> bool:
        """Tell what has ended the ranks; return whether they are started once more."""
        unheard = [end for end in ends if end.returncode is None]
        lost = self._hosts.gone([end.agent for end in unheard])
        if lost:
            names = ", ".join(agent.host.name for agent in lost)
            if not self._preemptions_left:
                print_status(
                    f"headrace: {names}: lost, and no preemption is left (--max-preemptions)\n"
                )
                return False
            self._preemptions_left -= 1
            print_status(
                f"headrace: {names}: lost; all ranks start anew once there are enough hosts\n"
            )
            return True
        for end in unheard:
            print_status(
                f"headrace: {end.host}: its agent failed, though the host lives; often memory ran "
                f"out: {end.reason}\n"
            )
        refusals = [(end.host, end.refusal) for end in ends if end.refusal]
        for sentence in refusal_messages(refusals, len(ends)):
            print_status(sentence)
        first = _first_failure(ends)
        if first is not None:
            print_status(first.message)
        refused = [end for end in ends if end.returncode == UsageError.exit_code]
        if any(end.failure is None for end in refused):  # it would be told the same again
            return False
        if not self._restarts_left:
            return False
        self._restarts_left -= 1
        print_status(f"headrace: all ranks start anew; {self._restarts_left} restarts are left\n")
        return True


def _first_failure(ends: Sequence[HostExit]) -> HostExit | None:
    failures = {end.failure: end for end in ends if end.failure is not None}
    return failures[first_failure(list(failures))] if failures else None


def _exit_code(ends: Sequence[HostExit]) -> int:
    first = _first_failure(ends)
    if first is not None and first.failure is not None:
        return exit_code_of(first.failure.returncode)
    if any(end.returncode is None for end in ends):
        return LaunchError.exit_code
    codes = [end.returncode for end in ends if end.returncode]
    return exit_code_of(codes[0]) if codes else LaunchError.exit_code
