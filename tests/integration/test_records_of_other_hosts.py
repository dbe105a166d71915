"""Ranks on another machine are recorded with the others: a host with its own address and files."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.whatif.tables import columns
from headrace.observe.whatif.train_steps import read_steps
from headrace.records.host_place import pid_host
from headrace.records.live_switch import LiveSwitch
from headrace.records.reader import Records, open_records
from headrace.report.charts.heatmap import UNKNOWN_PERCENT, heatmap_chart
from jobs import eventually
from machine import needs
from two_host_job import steps_of, switched_off, two_host_job

pytestmark = needs("networks")


def test_a_rank_elsewhere_is_recorded_in_step_with_the_others(tmp_path: Path) -> None:
    with two_host_job(tmp_path) as (head, jobs, records):
        eventually(lambda: min(steps_of(records, rank) for rank in (0, 1)) > 60, "steps of both")
        LiveSwitch(records.folder).on = False
        eventually(lambda: switched_off(records) == {"switched", "host-switched"}, "both hosts")
        (tmp_path / "stop").touch()
        assert [each.wait(120) for each in jobs] == [0, 0], head.output(tmp_path / "code")
        said = head.output(tmp_path / "code")
    assert "was applied to no DataLoader" not in said
    recorded = open_records(records.path)
    hosts, processes = columns(recorded, "hosts"), columns(recorded, "processes")
    assert sorted(zip(hosts["number"].tolist(), hosts["instance_group"], strict=True)) == [
        (0, "gpu"), (1, "gpu"),
    ]  # fmt: skip
    ranks = processes.having(role="rank")
    assert sorted(zip(ranks["rank"].tolist(), ranks["host"].tolist(), strict=True)) in (
        [(0, 0), (1, 1)], [(0, 1), (1, 0)],
    )  # fmt: skip
    assert (pid_host(processes["pid"]) == processes["host"]).all()
    workers = processes.having(role="worker")
    assert set(workers["worker"].tolist()) == {0, 1}, "--apply reaches both"
    system = columns(recorded, "system")
    assert set(system["host"].tolist()) == {0, 1}
    check_clocks(recorded)
    code = str(tmp_path / "code" / "train.py")
    assert set(columns(recorded, "loaders")["file"]) == {code}, "a line of code has one name"
    assert list(read_steps(recorded).ranks) == [0, 1]
    assert "switched off 2 times" not in " ".join(diagnose(recorded).gaps)
    check_page(recorded)


def check_page(records: Records) -> None:
    """Check that the run's page has the ranks, workers and cores of each host apart."""
    chart = heatmap_chart(records)
    assert chart is not None
    titles: dict[str, set[str]] = {}
    for band in chart.bands:
        assert band.host
        assert (band.values != UNKNOWN_PERCENT).any()
        titles.setdefault(band.host, set()).add(band.title)
    assert len(titles) == 2
    here, there = titles.values()
    assert here == there
    assert len(here) >= 3
    page = (records.path / "report.html").read_text()
    assert all(json.dumps(host) in page for host in titles)


def check_clocks(records: Records) -> None:
    """Check that ranks leave the gradient sync of each step at about the same time.

    They meet in each backward, so that a rank's step cannot end before the other's has begun.
    """
    steps = columns(records, "steps").having(kind="train")
    first, second = (steps.having(rank=rank) for rank in (0, 1))
    both = np.intersect1d(first["step"], second["step"])
    assert len(both) > 20
    ends, begins = ({}, {})
    for rows in (first, second):
        rank = int(rows["rank"][0])
        inside = np.isin(rows["step"], both)
        begins[rank] = rows["start_ns"][inside]
        ends[rank] = begins[rank] + rows["wall_ns"][inside]
    for rank in (0, 1):
        late_ns = begins[1 - rank] - ends[rank]
        assert late_ns.max() < 50_000_000, "clocks that agree to within a few milliseconds"


def test_what_a_killed_rank_did_last_is_recorded(tmp_path: Path) -> None:
    with two_host_job(tmp_path) as (_, jobs, records):
        eventually(lambda: min(steps_of(records, rank) for rank in (0, 1)) > 10, "steps of both")
        ranks = columns(records, "processes").having(role="rank")
        (pid,) = (pid for pid in ranks["pid"].tolist() if pid_host(pid))
        os.kill(pid % 2**32, signal.SIGKILL)
        assert all(each.wait(120) for each in jobs)
    recorded = open_records(records.path)
    assert not recorded.live
    assert min(steps_of(recorded, rank) for rank in (0, 1)) > 10
    assert columns(recorded, "events").having(kind="probe-fault").count == 0
