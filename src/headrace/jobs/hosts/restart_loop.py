"""The restarts of a job's ranks on several hosts, within its budgets.

A rank that fails ends the ranks of all hosts; then all of them are restarted, as often as
--max-restarts allows. The loss of a host is counted separately, by --max-preemptions.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.cluster.agent import HostProgram
from headrace.cluster.placement import PlacedAgent
from headrace.core.console import print_status
from headrace.core.errors import LaunchError, UsageError
from headrace.core.process.supervision import STOP_SIGNALS, exit_code_of
from headrace.jobs.failure import first_failure
from headrace.jobs.hosts.driver_protocol import refusal_messages
from headrace.jobs.hosts.rank_group import (
    AgentCalls,
    HostExit,
    MessageHandler,
    RankGroup,
    RankGroupFactory,
    StopRequest,
)
from headrace.jobs.output.terminal_output import HostOutput

_AGENTS_EXTRA_S = 10.0  # torchrun needs some time itself after its ranks have ended


class PlacedAgents(Protocol):
    """Agents that live until they are closed."""

    agents: list[PlacedAgent]

    def close(self) -> None:
        """End the agents, and all their processes."""


class HostProvider(Protocol):
    """The source of a job's hosts."""

    @property
    def calls(self) -> AgentCalls:
        """The calls of their agents."""

    def placed(self, stop: StopRequest) -> PlacedAgents | None:
        """Return an agent on each host, as soon as there are enough; None: the job is over."""

    def prepare(
        self,
        agents: Sequence[PlacedAgent],
        rank_group: RankGroupFactory,
        stop: StopRequest,
    ) -> list[HostExit]:
        """Prepare the hosts; return the ends of hosts on which that failed."""

    def program(
        self, agents: Sequence[PlacedAgent], agent: PlacedAgent, number: int
    ) -> HostProgram:
        """Return the program of a host in one start of the ranks, `number` counted from 0."""

    def tend(self) -> None:
        """Maintain other resources; called often."""

    def gone(self, agents: Sequence[PlacedAgent]) -> list[PlacedAgent]:
        """Return the agents of lost hosts, which are not used again."""

    def close(self) -> None:
        """Release all other resources."""


@dataclass(slots=True, kw_only=True)
class RestartLoop:
    """Starts ranks until they succeed or a budget is used up."""

    hosts: HostProvider
    output: HostOutput  # prints the hosts' output
    logs: Path  # the folder for copies of other machines' logs
    grace_s: float  # between stop signal and kill
    restarts_left: int  # after a failure
    preemptions_left: int  # restarts after the loss of a host; -1: any number

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
            self.hosts.close()
            self.output.close()

    def _start(self, number: int, stop: StopRequest) -> list[HostExit]:
        placed = self.hosts.placed(stop)
        if placed is None:
            return []
        try:
            failed = self.hosts.prepare(placed.agents, self._rank_group, stop)
            if failed or stop.is_requested():
                return failed
            programs = [self.hosts.program(placed.agents, agent, number) for agent in placed.agents]
            return self._rank_group(placed.agents).run(programs, stop)
        finally:
            placed.close()

    def _rank_group(
        self, agents: Sequence[PlacedAgent], on_message: MessageHandler | None = None
    ) -> RankGroup:
        return RankGroup(
            calls=self.hosts.calls,
            agents=agents,
            grace_s=self.grace_s + _AGENTS_EXTRA_S,
            logs=self.logs,
            output=self.output,
            on_poll=self.hosts.tend,
            on_message=on_message,
        )

    def _may_restart(self, ends: Sequence[HostExit]) -> bool:
        """Print why the ranks ended; return whether they are restarted."""
        silent = [end for end in ends if end.returncode is None]
        lost = self.hosts.gone([end.agent for end in silent])
        if lost:
            names = ", ".join(agent.host.name for agent in lost)
            if not self.preemptions_left:
                print_status(
                    f"headrace: {names}: lost, and no preemption is left (--max-preemptions)\n"
                )
                return False
            self.preemptions_left -= 1
            print_status(
                f"headrace: {names}: lost; all ranks start anew once there are enough hosts\n"
            )
            return True
        for end in silent:
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
        if any(end.failure is None for end in refused):  # a restart would be refused again
            return False
        if not self.restarts_left:
            return False
        self.restarts_left -= 1
        print_status(f"headrace: all ranks start anew; {self.restarts_left} restarts are left\n")
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
