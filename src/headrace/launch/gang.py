"""The ranks of all hosts: what they say is shown, and where one fails, all are stopped."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from headrace.cluster.agent import News, Program
from headrace.cluster.folder_tail import grow
from headrace.cluster.placement import PlacedAgent
from headrace.launch.failure import RankFailure
from headrace.launch.told import tell

_LOOK_EVERY_S = 0.1
_TERMINALS: dict[str, BinaryIO] = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}


class StopRequest:
    """The signal by which the job is asked to stop.

    Attributes:
        number: The signal's; None while nobody asked.
    """

    number: int | None = None

    def heed(self, numbers: Sequence[signal.Signals]) -> None:
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
        host: The host's name.
        returncode: Of what ran them, -n for signal n; None: the host was lost.
        failure: Their first failure, where one failed by itself.
        message: What the host says about that.
    """

    host: str
    returncode: int | None
    failure: RankFailure | None = None
    message: str = ""


class Gang:
    """One start of all hosts' ranks.

    Args:
        ray: Connected.
        agents: One a host.
        grace_s: How long ranks that were asked to stop may take.
        logs: Where the logs go that hosts keep for themselves.
    """

    def __init__(
        self, ray: ModuleType, agents: Sequence[PlacedAgent], *, grace_s: float, logs: Path
    ) -> None:
        self._ray = ray
        self._agents = agents
        self._grace_s = grace_s
        self._logs = logs
        self._announced: dict[str, dict[str, Any]] = {}
        self._ends: list[HostEnd] = []
        self._asked_to_stop = False
        self._deadline_s: float | None = None

    def run(self, programs: Sequence[Program], stop: StopRequest) -> list[HostEnd]:
        """Run a program on each host until all have ended, and return how, first end first."""
        for agent, program in zip(self._agents, programs, strict=True):
            agent.actor.start.remote(program)
        waiting = {agent.actor.news.remote(): agent for agent in self._agents}
        while waiting:
            ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=_LOOK_EVERY_S)
            for reference in ready:
                agent = waiting.pop(reference)
                if self._take_in(agent, reference):
                    waiting[agent.actor.news.remote()] = agent
            if stop.number is not None or any(end.returncode != 0 for end in self._ends):
                self._stop(list(waiting.values()), stop.number or signal.SIGTERM)
        return self._ends

    def _take_in(self, agent: PlacedAgent, reference: Any) -> bool:
        """Show what a host has said; return whether there will be more."""
        name = agent.host.name
        try:
            news: News = self._ray.get(reference)
        except self._ray.exceptions.RayError:
            self._ends.append(HostEnd(host=name, returncode=None))
            return False
        for source, text in news.output:
            with suppress(OSError, ValueError):  # nobody reads any more: the logs have it
                _TERMINALS[source].write(text)
                _TERMINALS[source].flush()
        with suppress(OSError):  # a full disk: what is shown is all there is
            grow(self._logs, news.logs)
        for announced in news.announced:
            self._announced[name] = announced
        if news.returncode is None:
            return True
        self._ends.append(self._end(name, news.returncode))
        return False

    def _end(self, host: str, returncode: int) -> HostEnd:
        told = self._announced.get(host, {}).get("failure")
        return HostEnd(
            host=host,
            returncode=returncode,
            failure=RankFailure(**told["first"]) if told else None,
            message=told["message"] if told else "",
        )

    def _stop(self, agents: Sequence[PlacedAgent], number: int) -> None:
        """Ask the ranks that still run to stop; after the grace, kill them."""
        now_s = time.monotonic()
        if not self._asked_to_stop:
            self._asked_to_stop = True
            self._deadline_s = now_s + self._grace_s
            self._send(agents, number)
        elif self._deadline_s is not None and now_s > self._deadline_s:
            self._deadline_s = None
            names = ", ".join(agent.host.name for agent in agents)
            tell(f"headrace: {names} did not stop within {self._grace_s:.0f} s and is killed\n")
            self._send(agents, signal.SIGKILL)

    def _send(self, agents: Sequence[PlacedAgent], number: int) -> None:
        for agent in agents:
            agent.actor.stop.remote(int(number))
