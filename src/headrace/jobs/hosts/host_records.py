"""The records of hosts on other machines: taken in where those of the driver's host are kept."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from headrace.cluster.agent import AgentReport, FileGrowth, append_growths
from headrace.cluster.ray_cluster import PlacedAgent
from headrace.core.console import print_status
from headrace.core.errors import RecordsError
from headrace.core.overrides import APPLIED
from headrace.records.host_place import HostPlace
from headrace.records.layout import RINGS
from headrace.records.live_switch import LiveSwitch, SwitchState
from headrace.records.outbox import SentLine
from headrace.records.run_folder import Attempt, RunFolder
from headrace.records.schema import LAUNCHER_HOST
from headrace.records.sent_rows import SentRowsWriter

_REPORTS = 60  # the clocks drift: older reports say nothing of how they differ now


class _SentByHost:
    """What one host has sent since its agent started, and how its clock differs."""

    def __init__(self, writer: SentRowsWriter, folder: str, folder_here: str) -> None:
        self.writer = writer
        self.received = 0
        self._folders = json.dumps(folder)[1:-1], json.dumps(folder_here)[1:-1]
        self._ahead_ns: deque[int] = deque(maxlen=_REPORTS)

    def take(self, report: AgentReport) -> None:
        # The report with the smallest delay gives the best estimate.
        self._ahead_ns.append(time.monotonic_ns() - report.monotonic_ns)
        if report.records:
            lines = [SentLine(each.number, self._with_paths(each.text)) for each in report.records]
            self.writer.add(lines, min(self._ahead_ns))
            self.received = report.records[-1].number

    def _with_paths(self, text: str) -> str:
        """Return rows with the job's files as they are called here: a line of code has one name."""
        there, here = self._folders
        for end in ("/", '"'):  # not a folder whose name only begins like it
            text = text.replace(there + end, here + end)
        return text


class HostRecords:
    """The records of the hosts of one attempt.

    Args:
        folder: Of the run.
        attempt: The one that is recorded.
        working_dir: The folder of which other hosts have a copy.
    """

    def __init__(self, folder: RunFolder, attempt: Attempt, working_dir: str) -> None:
        self._working_dir = working_dir
        self._run = folder.path
        self._attempt = attempt.number
        self._records = folder.records(attempt.number)
        self._numbers: dict[str, int] = {}  # of hosts on other machines, by name
        self._by_agent: dict[Any, _SentByHost] = {}
        self._has_said_full = False
        self._marks: list[FileGrowth] = []  # not written yet
        self._switch: LiveSwitch | None = None
        self._sent_state: SwitchState | None = None
        self._informed: set[Any] = set()  # the agents that know of it

    def place(self, agent: PlacedAgent) -> HostPlace | None:
        """Return a host's place in the records; None for one on the driver's machine."""
        if agent.facts.is_drivers:
            return None
        name = agent.host.name
        number = self._numbers.setdefault(name, LAUNCHER_HOST + 1 + len(self._numbers))
        return HostPlace(
            attempt=self._attempt, number=number, name=name, group=agent.host.group or ""
        )

    def received(self, agent: PlacedAgent) -> int:
        """Return the number of the last line of a host that has arrived."""
        known = self._by_agent.get(agent.actor)
        return 0 if known is None else known.received

    def take(self, agent: PlacedAgent, report: AgentReport) -> None:
        """Take in what a host has sent; on a full disk it is sent again."""
        place = self.place(agent)
        if place is None:
            return
        if agent.actor not in self._by_agent:
            writer = SentRowsWriter(self._records / RINGS, place.number)
            self._by_agent[agent.actor] = _SentByHost(writer, agent.facts.folder, self._working_dir)
        try:
            self._by_agent[agent.actor].take(report)
        except OSError as error:
            if not self._has_said_full:
                self._has_said_full = True
                print_status(
                    f"what {place.name} records cannot be written: {error}. It is tried again "
                    "until a minute after its ranks have ended: make room."
                )
        self._marks += report.applied
        with suppress(OSError):
            append_growths(self._run / APPLIED, self._marks)
            self._marks.clear()

    def follow_switch(self, agents: Sequence[PlacedAgent]) -> None:
        """Have other hosts record as the attempt's switch says."""
        others = [agent for agent in agents if not agent.facts.is_drivers]
        state = self._state() if others else None
        if state is None:
            return
        if self._sent_state is None or _differ(state, self._sent_state):
            self._sent_state = state
            self._informed.clear()
        for agent in others:
            if agent.actor not in self._informed and self.received(agent):  # its switch is there
                self._informed.add(agent.actor)
                agent.actor.switch_recording.remote(state)

    def _state(self) -> SwitchState | None:
        if self._switch is None:
            try:
                self._switch = LiveSwitch(self._records)
            except RecordsError:  # not recorded
                return None
        return self._switch.state


def _differ(state: SwitchState, other: SwitchState) -> bool:
    """Return whether two states differ, but for the time that passes while recording is deep."""
    names = ("on", "interval_s", "deep_count")
    is_other = any(getattr(state, name) != getattr(other, name) for name in names)
    return is_other or (state.deep_s > 0) != (other.deep_s > 0)
