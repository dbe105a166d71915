"""The ranks of all hosts as one group: output, clocks, failures, their stop and their restarts.

A rank that fails ends the ranks of all hosts; then all of them are restarted, as often as
--max-restarts allows. The loss of a host is counted separately, by --max-preemptions.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headrace.cluster.agent import AgentReport, HostProgram, append_growths
from headrace.cluster.ray_cluster import PlacedAgent
from headrace.core.console import print_status, write_status
from headrace.core.errors import LaunchError, UsageError
from headrace.core.process.supervision import STOP_SIGNALS, exit_code_of
from headrace.jobs.failure import ClockOffset, RankFailure, describe_exit, first_failure
from headrace.jobs.host_run import READY, REFUSED, refusal_messages
from headrace.jobs.hosts.host_records import HostRecords
from headrace.jobs.hosts.report_calls import AgentCalls, ReportCalls
from headrace.jobs.hosts.spool_copies import SpoolCopies
from headrace.jobs.output import HostOutput

_SILENT_S = 60.0  # a live agent answers within a second or two
_SILENT_AFTER_KILL_S = 10.0
_RECORDERS_S = 90.0  # in which they close, after a collector's 60 s
_OTHER_FAILURES_S = 1.5  # in which ranks that fail because of another report it themselves


class StopRequest:
    """The stop request of a job, made by a signal."""

    number: int | None = None  # the signal's; None: no request

    def is_requested(self) -> bool:
        """Whether a stop was requested."""
        return self.number is not None

    def catch_signals(self, numbers: Iterable[signal.Signals]) -> None:
        """Install handlers that note these signals; ignored signals stay ignored."""
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, self._note)

    def _note(self, number: int, _frame: object) -> None:
        self.number = self.number or number


@dataclass(frozen=True, slots=True, kw_only=True)
class HostExit:
    """The end of the ranks of one host."""

    agent: PlacedAgent
    returncode: int | None  # of the process that ran them, -n for signal n; None: unknown
    reason: str = ""  # why it is unknown
    failure: RankFailure | None = None  # the first of a rank by itself, with times of this clock
    message: str = ""  # the host's, about the failure
    refusal: str = ""  # why the host could not start; "": it could

    @property
    def host(self) -> str:
        """The host's name."""
        return self.agent.host.name


HostStart = tuple[PlacedAgent, HostProgram]
"""An agent, and the program that it is to run."""
MessageHandler = Callable[[str, dict[str, Any]], object]
"""Handles a program's message, with the host's name."""


@dataclass(kw_only=True)
class RankGroup:
    """One start of all hosts' ranks."""

    ray_api: AgentCalls
    agents: Sequence[PlacedAgent]  # one a host
    grace_s: float  # between stop signal and kill
    logs: Path  # the folder for copies of other machines' logs
    output: HostOutput  # prints the hosts' output
    on_poll: Callable[[], None]  # called often while the ranks run
    on_message: MessageHandler | None = None
    spool: Path | None = None  # of the run, for what is logged on other machines; None: untracked
    records: HostRecords | None = None  # of hosts on other machines; None: nothing is recorded
    recorders: Sequence[HostStart] = ()  # of hosts that are only recorded, as long as ranks run

    def __post_init__(self) -> None:
        self._clocks: dict[str, ClockOffset] = {}
        self._announced: dict[str, dict[str, Any]] = {}
        self._started: dict[str, Any] = {}
        self._ends: list[HostExit] = []
        self._calls = ReportCalls(self.ray_api)
        self._spool = SpoolCopies(self.spool)
        self._ready: set[str] = set()
        self._stop_s: float | None = None  # when the remaining ranks get the stop signal
        self._kill_s: float | None = None
        self._silent_s = _SILENT_S
        self._recorder_hosts = {agent.host.node_id for agent, _ in self.recorders}
        self._recorders_kill_s: float | None = None  # None: they go on

    def run(self, programs: Sequence[HostProgram], stop: StopRequest) -> list[HostExit]:
        """Run a program on each host until all have ended; return the ends in their order."""
        for agent, program in [*zip(self.agents, programs, strict=True), *self.recorders]:
            self._started[agent.host.node_id] = agent.actor.start.remote(program)
            self._clocks[agent.host.node_id] = ClockOffset()
            self._poll(agent)
        while self._calls.agents:
            self._receive_reports()
            if self._ready >= self._awaited():  # all programs wait at the start barrier
                self._ready.clear()
                for agent in self.agents:
                    agent.actor.release.remote()
            self._stop_where_needed(stop)
            self._stop_recorders()
            if self.records is not None:
                recorded = [*self.agents, *(agent for agent, _ in self.recorders)]
                self.records.follow_switch(recorded)
            self.on_poll()
        self._spool.close()
        return self._ends

    def _awaited(self) -> set[str]:
        """Return the hosts that have to be ready: those of the ranks, and recorders that live."""
        living = {agent.host.node_id for agent in self._calls.agents}
        return {agent.host.node_id for agent in self.agents} | (living & self._recorder_hosts)

    def _left(self, *, recorders: bool) -> list[PlacedAgent]:
        """Return the agents whose programs go on: of ranks, or of recorders."""
        return [
            agent
            for agent in self._calls.agents
            if (agent.host.node_id in self._recorder_hosts) is recorders
        ]

    def _stop_recorders(self) -> None:
        """Have recorders write their last rows once all ranks have ended; kill them at last."""
        left, now_s = self._left(recorders=True), time.monotonic()
        if not left or self._left(recorders=False):
            return
        if self._recorders_kill_s is None:
            self._recorders_kill_s = now_s + _RECORDERS_S
            _send(left, signal.SIGTERM)
        elif now_s > self._recorders_kill_s:
            self._recorders_kill_s = float("inf")
            _send(left, signal.SIGKILL)

    def _note_end(self, end: HostExit) -> None:
        if end.agent.host.node_id not in self._recorder_hosts:
            self._ends.append(end)
        elif end.returncode != 0:
            reason = end.refusal or end.reason or describe_exit(end.returncode or 0)
            print_status(
                f"{end.host}: what the script has Ray start there is recorded no more: {reason}"
            )

    def _poll(self, agent: PlacedAgent) -> None:
        # Calls overtake each other: with the start, no earlier program's end is reported.
        received = 0 if self.records is None else self.records.received(agent)
        started = self._started[agent.host.node_id]
        self._calls.begin(agent, agent.actor.report.remote(started, received))

    def _receive_reports(self) -> None:
        for agent, call in self._calls.returned():
            try:
                report: AgentReport = self.ray_api.get(call)
            except self.ray_api.exceptions.ActorUnavailableError:  # perhaps temporary
                self._poll(agent)
            except (self.ray_api.exceptions.RayError, ConnectionError) as error:
                self._note_end(HostExit(agent=agent, returncode=None, reason=str(error)))
            else:
                self._calls.heard(agent)
                self._clocks[agent.host.node_id].add(report.clock_s, time.time())
                self._handle_report(agent, report)
        reason = f"nothing was heard of it for {self._silent_s:.0f} s"
        for agent in self._calls.give_up_silent(self._silent_s):
            self._note_end(HostExit(agent=agent, returncode=None, reason=reason))

    def _handle_report(self, agent: PlacedAgent, report: AgentReport) -> None:
        for source, text in report.output:
            self.output.show(source, text)
        with suppress(OSError):  # on a full disk the output is only shown
            append_growths(self.logs, report.logs)
        self._spool.add(agent.host.name, report.spool)
        if self.records is not None:
            self.records.take(agent, report)
        for announced in report.announced:
            if self.on_message is not None:
                self.on_message(agent.host.name, announced)
            self._announced[agent.host.node_id] = announced
            if announced.get(READY):
                self._ready.add(agent.host.node_id)
        if report.returncode is None:
            self._poll(agent)
            return
        last = self._announced.get(agent.host.node_id, {})
        failure, message = None, ""
        if failed := last.get("failure"):
            clock = self._clocks[agent.host.node_id]
            failure = clock.to_local(RankFailure(**failed["first"]))
            # Another machine's logs have been copied here by now.
            message = failed["message"].replace(failed["logs"], str(self.logs))
        end = HostExit(
            agent=agent,
            returncode=report.returncode,
            failure=failure,
            message=message,
            refusal=last.get(REFUSED, ""),
        )
        self._note_end(end)

    def _stop_where_needed(self, stop: StopRequest) -> None:
        """Send running ranks the stop signal after a failure or a request; kill them at last."""
        now_s = time.monotonic()
        failed = any(end.returncode != 0 for end in self._ends)
        if self._kill_s is None and (failed or stop.is_requested()):
            self._stop_s = self._stop_s or now_s + _OTHER_FAILURES_S
            if now_s >= self._stop_s or stop.is_requested():
                self._kill_s = now_s + self.grace_s
                _send(self._left(recorders=False), stop.number or signal.SIGTERM)
        elif self._kill_s is not None and now_s > self._kill_s:
            self._kill_s = float("inf")
            left = self._left(recorders=False)
            if not left:  # their records are closed
                return
            self._silent_s = _SILENT_AFTER_KILL_S
            names = ", ".join(agent.host.name for agent in left)
            print_status(f"{names} did not stop within {self.grace_s:.0f} s and is killed")
            _send(left, signal.SIGKILL)


def _send(agents: Sequence[PlacedAgent], number: int) -> None:
    for agent in agents:
        agent.actor.stop.remote(int(number))


RankGroupFactory = Callable[[Sequence[PlacedAgent], MessageHandler | None], RankGroup]


_AGENTS_EXTRA_S = 10.0  # torchrun needs some time itself after its ranks have ended


class PlacedAgents(Protocol):
    """Agents that live until they are closed."""

    agents: list[PlacedAgent]

    def close(self) -> None:
        """End the agents, and all their processes."""


class HostProvider(Protocol):
    """The source of a job's hosts."""

    @property
    def ray_api(self) -> AgentCalls:
        """The calls of their agents."""

    def placed(self, stop: StopRequest) -> PlacedAgents | None:
        """Return an agent on each host, as soon as there are enough; None: the job is over."""

    def prepare(
        self, agents: Sequence[PlacedAgent], rank_group: RankGroupFactory, stop: StopRequest
    ) -> list[HostExit]:
        """Prepare the hosts; return the ends of hosts on which that failed."""

    def program(
        self, agents: Sequence[PlacedAgent], agent: PlacedAgent, number: int
    ) -> HostProgram:
        """Return the program of a host in one start of the ranks, `number` counted from 0."""

    def recorders(self, agents: Sequence[PlacedAgent]) -> Sequence[HostStart]:
        """Return those of hosts that are only recorded, beside the ones of the agents."""

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
    spool: Path | None = None  # of the run; see `RankGroup`
    records: HostRecords | None = None  # see `RankGroup`
    ended: Callable[[], None] = lambda: None  # called once no rank starts or runs any more

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
            self.ended()
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
            ranks = self._rank_group(placed.agents, recorders=self.hosts.recorders(placed.agents))
            return ranks.run(programs, stop)
        finally:
            placed.close()

    def _rank_group(
        self,
        agents: Sequence[PlacedAgent],
        on_message: MessageHandler | None = None,
        recorders: Sequence[HostStart] = (),
    ) -> RankGroup:
        return RankGroup(
            ray_api=self.hosts.ray_api,
            agents=agents,
            grace_s=self.grace_s + _AGENTS_EXTRA_S,
            logs=self.logs,
            output=self.output,
            on_poll=self.hosts.tend,
            on_message=on_message,
            spool=self.spool,
            records=self.records,
            recorders=recorders,
        )

    def _may_restart(self, ends: Sequence[HostExit]) -> bool:
        """Print why the ranks ended; return whether they are restarted."""
        silent = [end for end in ends if end.returncode is None]
        lost = self.hosts.gone([end.agent for end in silent])
        if lost:
            names = ", ".join(agent.host.name for agent in lost)
            if not self.preemptions_left:
                print_status(f"{names}: lost, and no preemption is left (--max-preemptions)")
                return False
            self.preemptions_left -= 1
            print_status(f"{names}: lost; all ranks start anew once there are enough hosts")
            return True
        for end in silent:
            print_status(
                f"{end.host}: its agent failed, though the host lives; often memory ran "
                f"out: {end.reason}"
            )
        refusals = [(end.host, end.refusal) for end in ends if end.refusal]
        for sentence in refusal_messages(refusals, len(ends)):
            print_status(sentence)
        first = _first_failure(ends)
        if first is not None:
            write_status(first.message)
        refused = [end for end in ends if end.returncode == UsageError.exit_code]
        if any(end.failure is None for end in refused):  # a restart would be refused again
            return False
        if not self.restarts_left:
            return False
        self.restarts_left -= 1
        print_status(f"all ranks start anew; {self.restarts_left} restarts are left")
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
