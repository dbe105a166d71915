"""The ranks of all hosts: what they say is shown, and where one fails, all are stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headrace.cluster.agent import News, Program
from headrace.cluster.folder_tail import grow
from headrace.cluster.placement import PlacedAgent
from headrace.launch.failure import RankFailure
from headrace.launch.hosts.host_clock import HostClock
from headrace.launch.hosts.showing import Shown
from headrace.launch.hosts.together import READY, REFUSED
from headrace.launch.told import tell

_LOOK_EVERY_S = 0.1
_SILENT_S = 60.0  # an agent that lives answers within a second or two
_SILENT_AFTER_KILL_S = 10.0
_OTHERS_S = 1.5  # ranks that fall over because another did tell so themselves meanwhile


class Calls(Protocol):
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

    def is_asked(self) -> bool:
        """Whether somebody has asked."""
        return self.number is not None

    def heed(self, numbers: Iterable[signal.Signals]) -> None:
        """Note such signals from now on, in place of what they do; ignored ones stay ignored."""
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, self._note)

    def _note(self, number: int, _frame: object) -> None:
        self.number = self.number or number


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEnd:
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


class Gang:
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
        self, calls: Calls, agents: Sequence[PlacedAgent], *, grace_s: float, logs: Path,
        shown: Shown, meanwhile: Callable[[], None],
        hear: Callable[[str, dict[str, Any]], object] | None = None,
    ) -> None:  # fmt: skip
        self._calls = calls
        self._agents = agents
        self._grace_s = grace_s
        self._logs = logs
        self._shown = shown
        self._meanwhile = meanwhile
        self._hear = hear
        self._clocks: dict[str, HostClock] = {}
        self._announced: dict[str, dict[str, Any]] = {}
        self._started: dict[str, Any] = {}
        self._heard_s: dict[str, float] = {}
        self._ends: list[HostEnd] = []
        self._waiting: dict[Any, PlacedAgent] = {}
        self._ready: set[str] = set()
        self._stop_s: float | None = None  # when the others are asked to stop
        self._kill_s: float | None = None
        self._silent_s = _SILENT_S

    def run(self, programs: Sequence[Program], stop: StopRequest) -> list[HostEnd]:
        """Run a program on each host until all have ended, and return how, first end first."""
        for agent, program in zip(self._agents, programs, strict=True):
            self._started[agent.host.node_id] = agent.actor.start.remote(program)
            self._heard_s[agent.host.node_id] = time.monotonic()
            self._clocks[agent.host.node_id] = HostClock()
            self._ask(agent)
        while self._waiting:
            self._look()
            self._begin_together()
            self._stop_where_needed(stop)
            self._meanwhile()
        return self._ends

    def _ask(self, agent: PlacedAgent) -> None:
        # Calls overtake one another, and what is heard must not be an earlier program's end.
        self._waiting[agent.actor.news.remote(self._started[agent.host.node_id])] = agent

    def _look(self) -> None:
        ready, _ = self._calls.wait(list(self._waiting), num_returns=1, timeout=_LOOK_EVERY_S)
        for reference in ready:
            agent = self._waiting.pop(reference)
            try:
                news: News = self._calls.get(reference)
            except self._calls.exceptions.ActorUnavailableError:  # for a moment, perhaps
                self._ask(agent)
            except (self._calls.exceptions.RayError, ConnectionError) as error:
                self._ends.append(HostEnd(agent=agent, returncode=None, reason=str(error)))
            else:
                self._heard_s[agent.host.node_id] = time.monotonic()
                self._clocks[agent.host.node_id].hear(news.clock_s, time.time())
                self._take_in(agent, news)
        now_s = time.monotonic()
        for reference, agent in list(self._waiting.items()):
            if now_s - self._heard_s[agent.host.node_id] > self._silent_s:
                del self._waiting[reference]
                reason = f"nothing was heard of it for {self._silent_s:.0f} s"
                self._ends.append(HostEnd(agent=agent, returncode=None, reason=reason))

    def _take_in(self, agent: PlacedAgent, news: News) -> None:
        for source, text in news.output:
            self._shown.show(source, text)
        with suppress(OSError):  # a full disk: what is shown is all there is
            grow(self._logs, news.logs)
        for announced in news.announced:
            if self._hear is not None:
                self._hear(agent.host.name, announced)
            self._announced[agent.host.node_id] = announced
            if announced.get(READY):
                self._ready.add(agent.host.node_id)
        if news.returncode is None:
            self._ask(agent)
            return
        last = self._announced.get(agent.host.node_id, {})
        told = last.get("failure")
        clock = self._clocks[agent.host.node_id]
        self._ends.append(
            HostEnd(
                agent=agent,
                returncode=news.returncode,
                failure=clock.here(RankFailure(**told["first"])) if told else None,
                # The logs of a host elsewhere are here by now.
                message=told["message"].replace(told["logs"], str(self._logs)) if told else "",
                refusal=last.get(REFUSED, ""),
            )
        )

    def _begin_together(self) -> None:
        """Have programs that wait for one another go on, once all of them do."""
        if len(self._ready) == len(self._agents):
            self._ready.clear()
            for agent in self._agents:
                agent.actor.go.remote()

    def _stop_where_needed(self, stop: StopRequest) -> None:
        """Ask ranks that still run to stop, where they are to; after the grace, kill them."""
        now_s = time.monotonic()
        failed = any(end.returncode != 0 for end in self._ends)
        if self._kill_s is None and (failed or stop.is_asked()):
            self._stop_s = self._stop_s or now_s + _OTHERS_S
            if now_s >= self._stop_s or stop.is_asked():
                self._kill_s = now_s + self._grace_s
                self._send(stop.number or signal.SIGTERM)
        elif self._kill_s is not None and now_s > self._kill_s:
            self._kill_s = float("inf")
            self._silent_s = _SILENT_AFTER_KILL_S
            names = ", ".join(agent.host.name for agent in self._waiting.values())
            tell(f"headrace: {names} did not stop within {self._grace_s:.0f} s and is killed\n")
            self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        for agent in self._waiting.values():
            agent.actor.stop.remote(int(number))
