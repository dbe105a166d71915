"""The ranks of all hosts as one group: output, clock offsets, failures and their stop."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from headrace.cluster.agent import AgentReport, HostProgram, append_growths
from headrace.cluster.placement import PlacedAgent
from headrace.core.console import print_status
from headrace.jobs.failure import RankFailure
from headrace.jobs.hosts.driver_protocol import READY, REFUSED
from headrace.jobs.output.terminal_output import HostOutput

_MAX_REPORTS = 64  # about a minute's: a clock that drifts, or is set, is followed


class ClockOffset:
    """How far this host's clock is ahead of another's, by the news that came from there."""

    def __init__(self) -> None:
        self._ahead_s: deque[float] = deque(maxlen=_MAX_REPORTS)

    def hear(self, told_s: float, now_s: float) -> None:
        """Take in one piece of news.

        Args:
            told_s: The other host's clock as it was told.
            now_s: This host's as it came.
        """
        self._ahead_s.append(now_s - told_s)

    def here(self, failure: RankFailure) -> RankFailure:
        """Return a failure over there, its times by this host's clock."""
        # The news that took least: others lay waiting, on either side.
        ahead_s = min(self._ahead_s, default=0.0)
        words_s = failure.last_words_s
        return replace(
            failure,
            seen_s=failure.seen_s + ahead_s,
            last_words_s=words_s + ahead_s if words_s else 0.0,
        )


_POLL_S = 0.1
_SILENT_S = 60.0  # an agent that lives answers within a second or two
_SILENT_AFTER_KILL_S = 10.0
_OTHER_FAILURES_S = 1.5  # ranks that fall over because another did tell so themselves meanwhile


class AgentCalls(Protocol):
    """What calls agents: Ray, or what stands for it where agents live in this process."""

    @property
    def exceptions(self) -> Any:
        """What holds RayError and ActorUnavailableError."""

    def wait(self, calls: list[Any], *, num_returns: int, timeout: float) -> tuple[Any, Any]:
        """Wait until a call has returned, and tell those that have from those that have not."""

    def get(self, call: Any) -> Any:
        """Return what a call returned, or raise what it raised."""


class StopRequest:
    """The signal by which the job is asked to stop.

    Attributes:
        number: The signal's; None while nobody asked.
    """

    number: int | None = None

    def is_requested(self) -> bool:
        """Whether somebody has asked."""
        return self.number is not None

    def catch_signals(self, numbers: Iterable[signal.Signals]) -> None:
        """Note such signals from now on, in place of what they do; ignored ones stay ignored."""
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, self._note)

    def _note(self, number: int, _frame: object) -> None:
        self.number = self.number or number


@dataclass(frozen=True, slots=True, kw_only=True)
class HostExit:
    """How the ranks of one host ended.

    Attributes:
        agent: The host's.
        returncode: Of what ran them, -n for signal n; None: nobody could tell any more.
        reason: Why nobody could.
        failure: Their first failure, where one failed by itself, with its times by the clock here.
        message: What the host says about that.
        refusal: Why the host could not begin; "": it could.
    """

    agent: PlacedAgent
    returncode: int | None
    reason: str = ""
    failure: RankFailure | None = None
    message: str = ""
    refusal: str = ""

    @property
    def host(self) -> str:
        """The host's name."""
        return self.agent.host.name


class RankGroup:
    """One start of all hosts' ranks.

    Args:
        calls: What calls the agents.
        agents: One a host.
        grace_s: How long ranks that were asked to stop may take.
        logs: Where the logs go that hosts keep for themselves.
        shown: Shows what hosts say.
        meanwhile: Called often while the ranks run.
        hear: Takes what programs announce beside a failure, by the host's name.
    """

    def __init__(
        self, calls: AgentCalls, agents: Sequence[PlacedAgent], *, grace_s: float, logs: Path,
        shown: HostOutput, meanwhile: Callable[[], None],
        hear: Callable[[str, dict[str, Any]], object] | None = None,
    ) -> None:  # fmt: skip
        self._calls = calls
        self._agents = agents
        self._grace_s = grace_s
        self._logs = logs
        self._shown = shown
        self._meanwhile = meanwhile
        self._hear = hear
        self._clocks: dict[str, ClockOffset] = {}
        self._announced: dict[str, dict[str, Any]] = {}
        self._started: dict[str, Any] = {}
        self._heard_s: dict[str, float] = {}
        self._ends: list[HostExit] = []
        self._waiting: dict[Any, PlacedAgent] = {}
        self._ready: set[str] = set()
        self._stop_s: float | None = None  # when the others are asked to stop
        self._kill_s: float | None = None
        self._silent_s = _SILENT_S

    def run(self, programs: Sequence[HostProgram], stop: StopRequest) -> list[HostExit]:
        """Run a program on each host until all have ended, and return how, first end first."""
        for agent, program in zip(self._agents, programs, strict=True):
            self._started[agent.host.node_id] = agent.actor.start.remote(program)
            self._heard_s[agent.host.node_id] = time.monotonic()
            self._clocks[agent.host.node_id] = ClockOffset()
            self._poll(agent)
        while self._waiting:
            self._look()
            self._release_start_barrier()
            self._stop_where_needed(stop)
            self._meanwhile()
        return self._ends

    def _poll(self, agent: PlacedAgent) -> None:
        # Calls overtake one another, and what is heard must not be an earlier program's end.
        self._waiting[agent.actor.news.remote(self._started[agent.host.node_id])] = agent

    def _look(self) -> None:
        ready, _ = self._calls.wait(list(self._waiting), num_returns=1, timeout=_POLL_S)
        for reference in ready:
            agent = self._waiting.pop(reference)
            try:
                news: AgentReport = self._calls.get(reference)
            except self._calls.exceptions.ActorUnavailableError:  # for a moment, perhaps
                self._poll(agent)
            except (self._calls.exceptions.RayError, ConnectionError) as error:
                self._ends.append(HostExit(agent=agent, returncode=None, reason=str(error)))
            else:
                self._heard_s[agent.host.node_id] = time.monotonic()
                self._clocks[agent.host.node_id].hear(news.clock_s, time.time())
                self._take_in(agent, news)
        now_s = time.monotonic()
        for reference, agent in list(self._waiting.items()):
            if now_s - self._heard_s[agent.host.node_id] > self._silent_s:
                del self._waiting[reference]
                reason = f"nothing was heard of it for {self._silent_s:.0f} s"
                self._ends.append(HostExit(agent=agent, returncode=None, reason=reason))

    def _take_in(self, agent: PlacedAgent, news: AgentReport) -> None:
        for source, text in news.output:
            self._shown.show(source, text)
        with suppress(OSError):  # a full disk: what is shown is all there is
            append_growths(self._logs, news.logs)
        for announced in news.announced:
            if self._hear is not None:
                self._hear(agent.host.name, announced)
            self._announced[agent.host.node_id] = announced
            if announced.get(READY):
                self._ready.add(agent.host.node_id)
        if news.returncode is None:
            self._poll(agent)
            return
        last = self._announced.get(agent.host.node_id, {})
        told = last.get("failure")
        clock = self._clocks[agent.host.node_id]
        self._ends.append(
            HostExit(
                agent=agent,
                returncode=news.returncode,
                failure=clock.here(RankFailure(**told["first"])) if told else None,
                # The logs of a host elsewhere are here by now.
                message=told["message"].replace(told["logs"], str(self._logs)) if told else "",
                refusal=last.get(REFUSED, ""),
            )
        )

    def _release_start_barrier(self) -> None:
        """Have programs that wait for one another go on, once all of them do."""
        if len(self._ready) == len(self._agents):
            self._ready.clear()
            for agent in self._agents:
                agent.actor.go.remote()

    def _stop_where_needed(self, stop: StopRequest) -> None:
        """Ask ranks that still run to stop, where they are to; after the grace, kill them."""
        now_s = time.monotonic()
        failed = any(end.returncode != 0 for end in self._ends)
        if self._kill_s is None and (failed or stop.is_requested()):
            self._stop_s = self._stop_s or now_s + _OTHER_FAILURES_S
            if now_s >= self._stop_s or stop.is_requested():
                self._kill_s = now_s + self._grace_s
                self._send(stop.number or signal.SIGTERM)
        elif self._kill_s is not None and now_s > self._kill_s:
            self._kill_s = float("inf")
            self._silent_s = _SILENT_AFTER_KILL_S
            names = ", ".join(agent.host.name for agent in self._waiting.values())
            print_status(
                f"headrace: {names} did not stop within {self._grace_s:.0f} s and is killed\n"
            )
            self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        for agent in self._waiting.values():
            agent.actor.stop.remote(int(number))
