"""Hosts that report to the driver: late reports, and what was logged where the disk is full."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.cluster.agent import FileGrowth
from headrace.jobs.hosts.report_calls import ReportCalls
from headrace.jobs.hosts.spool_copies import SpoolCopies


class Calls:
    """Calls of agents, of which some have finished; as with Ray, a wait returns one of them."""

    exceptions = SimpleNamespace(RayError=OSError, ActorUnavailableError=KeyError)

    def __init__(self, *finished: str) -> None:
        self.finished = set(finished)

    def wait(self, calls: list[Any], *, num_returns: int, timeout: float) -> tuple[Any, Any]:
        del timeout
        there = [call for call in calls if call in self.finished][:num_returns]
        return there, [call for call in calls if call not in there]

    def get(self, call: Any) -> Any:
        return call


def agents(*names: str) -> list[Any]:
    return [SimpleNamespace(host=SimpleNamespace(name=name, node_id=name)) for name in names]


def test_hosts_whose_reports_are_there_are_not_given_up():
    """As after a minute in which the driver itself stood still: then no host was heard of."""
    calls = ReportCalls(Calls("a", "b"))
    for agent in agents("a", "b", "c"):
        calls.begin(agent, agent.host.name)
    seen = []
    for _ in range(3):
        seen += [call for _, call in calls.returned()]
        seen += [f"{agent.host.name} is lost" for agent in calls.give_up_silent(-1.0)]
    assert sorted(seen) == ["a", "b", "c is lost"]
    assert calls.agents == []


def test_a_host_that_was_heard_of_is_waited_for():
    calls = ReportCalls(Calls())
    (agent,) = agents("a")
    calls.begin(agent, "call")
    calls.heard(agent)
    assert list(calls.give_up_silent(3600.0)) == []
    assert calls.agents == [agent]


GROWTH = FileGrowth(path="1.jsonl", start=0, content=b"{}\n")


def test_what_ranks_logged_on_several_hosts_is_written(tmp_path: Path):
    copies = SpoolCopies(tmp_path)
    for host in ("a", "b"):
        copies.add(host, [GROWTH])
    copies.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-1.jsonl", "b-1.jsonl"]


def test_what_cannot_be_written_is_kept_and_its_loss_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    place = tmp_path / "spool"
    place.write_text("no folder")
    copies = SpoolCopies(place)
    copies.add("a", [GROWTH])
    copies.add("b", [GROWTH])
    copies.close()
    said = " ".join(capsys.readouterr().err.split())
    assert "6 bytes that ranks on other machines logged for experiments are lost" in said
    assert "a-1.jsonl, b-1.jsonl" in said
    place.unlink()
    copies.close()
    assert not capsys.readouterr().err
    assert (place / "a-1.jsonl").read_bytes() == GROWTH.content


def test_a_run_that_is_not_tracked_loses_nothing(capsys: pytest.CaptureFixture[str]):
    copies = SpoolCopies(None)
    copies.add("a", [GROWTH])
    copies.close()
    assert not capsys.readouterr().err
