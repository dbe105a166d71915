"""Rows of another host as the launcher's records have them: times, process ids, columns, faults."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.observe.whatif.hosts import processes_on, training_host
from headrace.observe.whatif.tables import columns
from headrace.records.host_place import job_pid, pid_host
from headrace.records.layout import RINGS
from headrace.records.outbox import SentLine
from headrace.records.reader import Records
from headrace.records.schema import EVENTS, HOSTS, PROCESSES, TABLES, Table
from headrace.records.sent_rows import SentRowsWriter, sent_row_files
from records_folders import collector_of
from small_disks import mounted_disk

HOST, AHEAD_NS = 2, 1_000_000


def line(number: int = 1, *, system: list[Any] | None = None, **rows: list[Any]) -> SentLine:
    """Return a line of an outbox with rows of tables, by their names."""
    numbers = {table.name: str(table.number) for table in TABLES}
    content = {"tables": {numbers[name]: each for name, each in rows.items()}}
    return SentLine(number, json.dumps({**content, "system": system or []}))


def taken_in(run: Path, *lines: SentLine) -> Records:
    """Return the records of a run after another host has sent lines."""
    records = Records(run, 1)
    SentRowsWriter(records.folder / RINGS, HOST).add(lines, AHEAD_NS)
    collector_of(run).close()
    return records


def row(table: Table, **values: Any) -> list[Any]:
    default = {"int": -1, "float": 0.0, "text": ""}
    return [values.get(field.name, default[field.kind]) for field in table.fields]


def test_a_host_s_processes_have_ids_and_times_that_fit_the_launcher_s(tmp_path: Path):
    started = row(PROCESSES, pid=70, parent_pid=1, role="rank", rank=4, started_ns=5, host=0)
    named = row(HOSTS, host="other", number=HOST, unix_offset_ns=9_000_000, instance_group="gpu")
    records = taken_in(tmp_path, line(processes=[started], hosts=[named]))
    processes, hosts = columns(records, "processes"), columns(records, "hosts")
    assert processes["pid"].tolist() == [job_pid(70, HOST)]
    assert pid_host(processes["pid"]).tolist() == processes["host"].tolist() == [HOST]
    assert processes["started_ns"].tolist() == [5 + AHEAD_NS]
    assert hosts["unix_offset_ns"].tolist() == [9_000_000 - AHEAD_NS]
    assert training_host(records) == HOST
    assert processes_on(processes, HOST).count == 1
    assert processes_on(processes, 0).count == 0


def test_every_time_of_the_clock_is_converted_and_no_duration():
    for table in TABLES:
        converted = {table.fields[place].name for place in table.time_indexes}
        for field in table.fields:
            is_time = field.meaning.startswith("when") and field.name.endswith("_ns")
            assert (field.name in converted) == is_time, f"{table.name}.{field.name}"


def test_unknown_times_and_processes_stay_unknown(tmp_path: Path):
    records = taken_in(tmp_path, line(events=[row(EVENTS, at_ns=-1, kind="a")],
                                      processes=[row(PROCESSES, started_ns=0)]))  # fmt: skip
    assert columns(records, "events")["at_ns"].tolist() == [-1]
    assert columns(records, "processes")["pid"].tolist() == [-1]


def test_samples_have_their_host_and_columns_of_their_own(tmp_path: Path):
    names = ["t_ns", "host", "core_0_percent", "core_7_percent"]
    records = taken_in(tmp_path, line(system=[[names, [10, 0, 50.0, None]]]))
    system = columns(records, "system")
    assert system["t_ns"].tolist() == [10 + AHEAD_NS]
    assert system["host"].tolist() == [HOST]
    assert system["core_0_percent"].tolist() == [50.0]
    assert str(system["core_7_percent"][0]) == "nan"


@pytest.mark.parametrize(
    "damaged",
    [
        "[", "[]", "{}", '{"tables": {"4711": []}, "system": []}',
        '{"tables": {"9": [[1]]}, "system": []}',
        '{"tables": {"8": [[-1, 3, 4, "x", 0.0]]}, "system": []}',
        '{"tables": {}, "system": [[["t_ns", "host", "of_a_newer_version"], [1, 0, 2]]]}',
        '{"tables": {}, "system": [[["t_ns", "host", "core_0_percent"], [1, 0, "x"]]]}',
        '{"tables": {}, "system": [[["t_ns"], []]]}',
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_read_costs_itself_alone(tmp_path: Path, damaged: str):
    events = [row(EVENTS, at_ns=3, kind="a", text="of a good line")]
    records = taken_in(tmp_path, line(events=events), SentLine(2, damaged), line(3, events=events))
    found = columns(records, "events")
    assert found.having(kind="a").count == 2
    (fault,) = found.having(kind="probe-fault")["text"]
    assert "a line of another host is lost" in str(fault)


def test_files_follow_each_other_and_are_removed_once_taken_in(tmp_path: Path):
    rings = Records(tmp_path, 1).folder / RINGS
    collector = collector_of(tmp_path)
    writer = SentRowsWriter(rings, HOST)
    for number in range(1, 4):
        writer.add([line(number, events=[row(EVENTS, at_ns=1, text="x" * 3_000_000)])], 0)
    assert len(list(sent_row_files(rings))) == 2
    collector.drain()
    assert len(list(sent_row_files(rings))) == 1
    anew = SentRowsWriter(rings, HOST)  # of a launcher that starts the ranks again
    anew.add([line(1, events=[row(EVENTS, at_ns=1)])], 0)
    assert len(list(sent_row_files(rings))) == 2
    collector.close()
    assert not list(sent_row_files(rings))
    assert columns(Records(tmp_path, 1), "events").count == 4


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "small", "1m") as disk:
        yield disk


def test_on_a_full_disk_no_line_is_there_in_part_and_it_can_be_sent_again(small_disk: Path):
    writer = SentRowsWriter(small_disk, HOST)
    writer.add([line(1, events=[row(EVENTS, text="before")])], 0)
    (path,) = sent_row_files(small_disk)
    before = path.read_bytes()
    large = line(2, events=[row(EVENTS, text="y" * 2_000_000)])
    with pytest.raises(OSError, match=r"no room|No space"):
        writer.add([large], 0)
    assert path.read_bytes() == before
    subprocess.run(["mount", "-o", "remount,size=9m", str(small_disk)], check=True)
    writer.add([large], 0)
    assert path.read_bytes().count(b"\n") == 2


def test_a_host_whose_ranks_start_anew_is_one_row(tmp_path: Path):
    named = row(HOSTS, host="other", number=HOST, unix_offset_ns=9_000_000)
    moved = row(HOSTS, host="another", number=HOST, unix_offset_ns=7_000_000)
    records = taken_in(
        tmp_path, line(1, hosts=[named]), line(2, hosts=[named]), line(3, hosts=[moved])
    )
    assert columns(records, "hosts")["host"].tolist() == ["other", "another"]
