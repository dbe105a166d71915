"""What the driver does with records of another machine: numbers, paths, clocks, a full disk."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.cluster.agent import AgentReport, HostFacts
from headrace.cluster.ray_cluster import PlacedAgent, RayHost
from headrace.jobs.hosts.host_records import HostRecords
from headrace.observe.whatif.tables import columns
from headrace.records.live_switch import SwitchState, create_live_switch
from headrace.records.outbox import SentLine
from headrace.records.reader import Records
from headrace.records.run_folder import Attempt, RunFolder
from headrace.records.schema import EVENTS, LOADERS
from records_folders import collector_of
from small_disks import mounted_disk

COPY = "/var/ray/working_dir_files/_ray_pkg"


def agent(name: str = "other", *, is_drivers: bool = False, group: str | None = "gpu", **methods):
    host = RayHost(node_id=name, name=name, address="::1", group=group, cpus=1, gpus=0)
    facts = HostFacts(address="::1", is_drivers=is_drivers, free_port=1, folder=COPY)
    return PlacedAgent(actor=SimpleNamespaceWithHash(**methods), host=host, facts=facts)


class SimpleNamespaceWithHash(SimpleNamespace):
    """As a Ray actor's handle, it can be a key."""

    __hash__ = object.__hash__


def records_of(run: Path) -> HostRecords:
    attempt = Attempt(number=1, command=(), argv=(), started_s=1.0, world_size=2)
    return HostRecords(RunFolder(run), attempt, "/home/me/job")


def report(*rows: tuple[object, list[object]], number: int = 1, ago_ns: int = 0) -> AgentReport:
    tables = {str(table.number): [row] for table, row in rows}
    line = json.dumps({"tables": tables, "system": []})
    records = [SentLine(number, line)] if rows else []
    return AgentReport(records=records, monotonic_ns=time.monotonic_ns() - ago_ns)


def event(text: str) -> tuple[object, list[object]]:
    return EVENTS, [-1, 5_000, "kind", text, 0.0]


def test_hosts_have_numbers_of_their_own_and_keep_them(tmp_path: Path):
    records = records_of(tmp_path)
    first, second = agent("a"), agent("b", group=None)
    assert records.place(agent("here", is_drivers=True)) is None
    places = [records.place(each) for each in (first, second, agent("a"))]
    assert [(each.number, each.name, each.group) for each in places if each] == [
        (1, "a", "gpu"), (2, "b", ""), (1, "a", "gpu"),
    ]  # fmt: skip


def test_files_of_the_job_have_one_name_and_others_keep_theirs(tmp_path: Path):
    files = [f"{COPY}/train.py", f"{COPY}2/train.py", COPY, "/usr/lib/x.py"]
    records, other = records_of(tmp_path), agent()
    for number, file in enumerate(files, 1):
        row = [file if each.name == "file" else "" if each.kind == "text" else 1
               for each in LOADERS.fields]  # fmt: skip
        records.take(other, report((LOADERS, row), number=number))
    collector_of(tmp_path).close()
    found = columns(Records(tmp_path, 1), "loaders")["file"].tolist()
    assert found == ["/home/me/job/train.py", f"{COPY}2/train.py", "/home/me/job", "/usr/lib/x.py"]


def test_the_fastest_report_tells_how_clocks_differ(tmp_path: Path):
    records, other = records_of(tmp_path), agent()
    records.take(other, report(ago_ns=2_000_000_000))
    records.take(other, report(event("a"), ago_ns=9_000_000_000))
    collector_of(tmp_path).close()
    (at_ns,) = columns(Records(tmp_path, 1), "events")["at_ns"]
    assert 5_000 + 2_000_000_000 <= at_ns < 5_000 + 8_000_000_000


def test_on_a_full_disk_rows_are_asked_for_again(tmp_path: Path, capsys: pytest.CaptureFixture):
    with mounted_disk(tmp_path / "disk", "64k") as disk:
        records, other = records_of(disk), agent()
        records.take(other, report(event("small")))
        assert records.received(other) == 1
        for _ in range(2):
            records.take(other, report(event("x" * 200_000), number=2))
            assert records.received(other) == 1
        assert capsys.readouterr().err.count("what other records cannot be written") == 1
        subprocess.run(["mount", "-o", "remount,size=9m", str(disk)], check=True)
        records.take(other, report(event("x" * 200_000), number=2))
        assert records.received(other) == 2
        collector_of(disk).close()
        assert columns(Records(disk, 1), "events").count == 2


def test_another_host_s_switch_follows_until_the_attempt_ends(tmp_path: Path):
    sent: list[SwitchState] = []
    method = SimpleNamespace(remote=sent.append)
    records, other = records_of(tmp_path), agent(switch_recording=method)
    folder = Records(tmp_path, 1).folder
    folder.mkdir(parents=True)
    records.follow_switch([other])
    assert not sent, "the attempt is not recorded"
    switch = create_live_switch(folder, interval_s=0.5)
    records.follow_switch([other])
    assert not sent, "nothing has come from there: its own switch may not be there yet"
    records.take(other, report(event("a")))
    for change in (
        lambda: None,
        lambda: None,
        lambda: setattr(switch, "on", False),
        lambda: setattr(switch, "interval_s", 0.1),
        lambda: switch.go_deep(60),
        lambda: None,
        switch.end_deep,
    ):
        change()
        records.follow_switch([other])
    states = [(each.on, each.interval_s, each.deep_s > 0, each.deep_count) for each in sent]
    assert states == [
        (True, 0.5, False, 0), (False, 0.5, False, 0), (False, 0.1, False, 0),
        (False, 0.1, True, 1), (False, 0.1, False, 1),
    ]  # fmt: skip
