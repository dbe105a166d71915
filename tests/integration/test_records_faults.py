"""Records that are broken, cut, of another version, or not there."""

from __future__ import annotations

import json
import multiprocessing
import os
import sqlite3
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.core.errors import RecordsError, UsageError
from headrace.observe.doctor.diagnosis import diagnose
from headrace.records.collector import Collector
from headrace.records.data_frames import RunFrames
from headrace.records.layout import LAST_WRITTEN_FILE
from headrace.records.live_reader import recent_rows
from headrace.records.reader import find_run, open_records
from headrace.records.ring import HEADER_BYTES, RingWriter
from headrace.records.schema import (
    FETCHES,
    FORMAT_VERSION,
    OPTIONAL_TABLES,
    TABLES_BY_NAME,
)
from headrace.records.system_table import TABLE_NAMES
from run_tables import row_of

FORMAT_KEY = b"headrace_records_format"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "records" / "attempt-1"
    (folder / "rings").mkdir(parents=True)
    return folder


def write(folder: Path, name: str, count: int) -> Path:
    path = folder / "rings" / f"{name}.ring"
    writer = RingWriter(path)
    for number in range(count):
        writer.write(FETCHES, *row_of(FETCHES, rank=number))
    writer.close()
    return path


def write_many(folder: Path, name: str, count: int) -> None:
    for number in range(count):
        write(folder, f"{name}-{number}", 1)


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def spoil(folder: Path) -> None:
    third = HEADER_BYTES + 2 * (8 + FETCHES.frame.size)
    overwrite(write(folder, "broken-frame", 5), third, b"\xff\xff\xff\x0f")
    overwrite(write(folder, "broken-header", 5), 16, (1 << 40).to_bytes(8, "little"))
    overwrite(write(folder, "no-ring", 5), 0, b"something")
    overwrite(write(folder, "newer", 5), 7, b"7")
    cut = write(folder, "cut", 5)
    os.truncate(cut, 1000)
    os.truncate(write(folder, "cut-in-the-header", 5), 40)
    (folder / "rings" / "unfinished.ring").touch()


def faults(run: Path) -> list[str]:
    events = open_records(run).table("events").to_pylist()
    assert {row["kind"] for row in events} == {"probe-fault"}
    return sorted(Path(row["text"].split(": ")[0].split(" ")[0]).name for row in events)


SPOILT = ["broken-frame", "broken-header", "cut-in-the-header", "cut", "newer", "no-ring"]


def test_a_ring_in_the_making_is_read_once_it_is_made(folder: Path, tmp_path: Path):
    collector = Collector(folder, "here")
    context = multiprocessing.get_context("spawn")
    makers = [context.Process(target=write_many, args=(folder, name, 300)) for name in "ab"]
    for maker in makers:
        maker.start()
    while any(maker.is_alive() for maker in makers):
        collector.drain()
    collector.close()
    assert [maker.exitcode for maker in makers] == [0, 0]
    assert open_records(tmp_path).table("events").num_rows == 0
    assert open_records(tmp_path).table("fetches").num_rows == 600


def test_broken_rings_are_reported_and_cost_only_their_own_records(folder: Path, tmp_path: Path):
    write(folder, "healthy", 7)
    spoil(folder)
    assert faults(tmp_path) == [f"{name}.ring" for name in SPOILT]
    assert open_records(tmp_path).table("fetches").num_rows == 7 + 2

    collector = Collector(folder, "here")
    collector.drain()
    assert faults(tmp_path) == [f"{name}.ring" for name in SPOILT]
    collector.close()
    assert faults(tmp_path) == [f"{name}.ring" for name in SPOILT]
    assert open_records(tmp_path).table("fetches").num_rows == 7 + 2

    assert not (folder / "rings" / "unfinished.ring").exists()


def test_a_ring_that_cannot_be_opened_is_reported_once_and_tried_again(
    folder: Path, tmp_path: Path
):
    place = folder / "rings" / "a.ring"
    place.mkdir()
    collector = Collector(folder, "here")
    collector.drain()
    collector.drain()
    place.rmdir()
    write(folder, "a", 3)
    collector.close()
    assert faults(tmp_path) == ["a.ring"]
    assert open_records(tmp_path).table("fetches").num_rows == 3


def test_what_is_dropped_while_a_ring_is_drained_is_reported_once(folder: Path, tmp_path: Path):
    writer = RingWriter(folder / "rings" / "a.ring", 1024)

    def fill() -> None:
        while writer.write(FETCHES, *row_of(FETCHES, rank=1)):
            pass

    fill()
    collector = Collector(folder, "here")
    for _ in range(3):
        collector._postpone(fill)  # it comes amid the transaction, before events are written
        collector.drain()
    writer.close()
    collector.close()
    events = open_records(tmp_path).table("events").to_pylist()
    assert {row["kind"] for row in events} == {"dropped-records"}
    assert sum(row["value"] for row in events) == writer.dropped > 3


def test_a_ring_that_is_cut_while_it_is_read_is_reported(folder: Path, tmp_path: Path):
    path = folder / "rings" / "a.ring"
    writer = RingWriter(path)
    writer.write(FETCHES, *row_of(FETCHES, rank=1))
    collector = Collector(folder, "here")
    assert collector.drain() == 1
    os.truncate(path, 100)
    assert collector.drain() == 0
    collector.close()
    assert faults(tmp_path) == ["a.ring"]
    assert open_records(tmp_path).table("fetches").num_rows == 1


def test_a_store_that_cannot_be_written_loses_nothing(folder: Path, tmp_path: Path):
    write(folder, "a", 5)
    collector = Collector(folder, "here")
    with sqlite3.connect(folder / "here.sqlite", isolation_level=None) as other:
        collector.store.connection.execute("PRAGMA busy_timeout = 1")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            collector.drain()
        assert open_records(tmp_path).table("fetches").num_rows == 5
        other.execute("ROLLBACK")
    other.close()
    assert collector.drain() == 5
    collector.close()
    assert open_records(tmp_path).table("fetches").num_rows == 5


def test_half_written_parquet_does_not_count(folder: Path, tmp_path: Path):
    write(folder, "a", 5)
    collector = Collector(folder, "here")
    collector.drain()
    (folder / "fetches.parquet").write_bytes(b"PAR1")
    assert open_records(tmp_path).table("fetches").num_rows == 5
    collector.close()
    assert open_records(tmp_path).table("fetches").num_rows == 5


def test_a_store_of_a_newer_version_is_refused(folder: Path, tmp_path: Path):
    collector = Collector(folder, "here")
    collector.store.connection.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    with pytest.raises(RecordsError, match="newer Headrace"):
        open_records(tmp_path)


def test_closed_records_of_a_newer_version_are_refused(folder: Path, tmp_path: Path):
    Collector(folder, "here").close()
    table = pq.read_table(folder / "hosts.parquet")
    assert table.schema.metadata[FORMAT_KEY] == str(FORMAT_VERSION).encode()
    newer = table.replace_schema_metadata({FORMAT_KEY: str(FORMAT_VERSION + 1)})
    pq.write_table(newer, folder / "hosts.parquet")
    with pytest.raises(RecordsError, match="newer Headrace"):
        open_records(tmp_path)


def test_a_broken_or_lost_table_is_a_records_error(folder: Path, tmp_path: Path):
    Collector(folder, "here").close()
    (folder / "steps.parquet").write_bytes(b"PAR1 and no more")
    (folder / "stacks.parquet").unlink()
    records = open_records(tmp_path)
    for name in ("steps", "stacks"):
        with pytest.raises(RecordsError, match=f"{name}.parquet cannot be read"):
            records.table(name)
    with pytest.raises(RecordsError, match="No table 'paces'"):
        records.table("paces")


def test_a_broken_store_is_a_records_error(folder: Path, tmp_path: Path):
    (folder / "here.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(RecordsError, match="cannot be read: file is not a database"):
        open_records(tmp_path)


def test_an_older_table_has_nulls_for_what_it_lacks(folder: Path, tmp_path: Path):
    write(folder, "a", 3)
    Collector(folder, "here").close()
    table = pq.read_table(folder / "fetches.parquet")
    pq.write_table(table.drop_columns(["ready"]), folder / "fetches.parquet")
    found = open_records(tmp_path).table("fetches")
    assert found.column("ready").to_pylist() == [None] * 3
    assert found.column("rank").to_pylist() == [0, 1, 2]


def test_an_older_store_that_was_left_over_has_nulls_for_what_it_lacks(
    folder: Path, tmp_path: Path
):
    write(folder, "a", 3)
    collector = Collector(folder, "here")
    collector.drain()
    collector.store.connection.execute("ALTER TABLE fetches DROP COLUMN ready")
    collector.store.close()
    found = open_records(tmp_path).table("fetches")
    assert found.column("ready").to_pylist() == [None] * 3
    assert found.column("rank").to_pylist() == [0, 1, 2]


@pytest.mark.parametrize("name", sorted(OPTIONAL_TABLES))
def test_records_from_before_a_table_was_known_have_it_without_rows(
    folder: Path, tmp_path: Path, name: str
):
    write(folder, "a", 3)
    Collector(folder, "here").close()
    with_it = open_records(tmp_path)
    before = {each: with_it.table(each) for each in TABLE_NAMES}
    (folder / f"{name}.parquet").unlink()
    records = open_records(tmp_path)
    assert {each: records.table(each) for each in TABLE_NAMES} == before
    assert records.table(name).schema.equals(before[name].schema, check_metadata=True)
    assert records.table(name).num_rows == 0
    assert records.by_column(name) is None
    assert RunFrames(tmp_path).arrow(name).column_names == list(TABLES_BY_NAME[name].columns)
    assert len(RunFrames(tmp_path).phases.columns) == 8
    assert diagnose(records).verdict.steps == 0


@pytest.mark.parametrize("name", sorted(OPTIONAL_TABLES))
def test_a_store_from_before_a_table_was_known_has_it_without_rows(
    folder: Path, tmp_path: Path, name: str
):
    write(folder, "a", 3)
    collector = Collector(folder, "here")
    collector.drain()
    empty = open_records(tmp_path).table(name)
    assert empty.num_rows == 0
    collector.store.connection.execute(f"DROP TABLE {name}")
    collector.store.close()
    records = open_records(tmp_path)
    assert records.table(name) == recent_rows(records, name, 0) == empty
    assert records.table("fetches").num_rows == 3


def test_no_records_say_how_to_record(tmp_path: Path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(RecordsError, match="headrace run"):
        open_records(tmp_path)


def test_an_attempt_without_records_says_which_have_some(folder: Path, tmp_path: Path):
    write(folder, "a", 3)
    (tmp_path / "records" / "attempt-2" / "rings").mkdir(parents=True)
    assert open_records(tmp_path).attempt == 1
    with pytest.raises(RecordsError, match="attempt 2; it has those of 1"):
        open_records(tmp_path, 2)


def test_all_tables_of_rings_alone_can_be_read(folder: Path, tmp_path: Path):
    write(folder, "a", 3)
    records = open_records(tmp_path)
    assert {name: records.table(name).num_rows for name in TABLE_NAMES if name != "fetches"} == (
        dict.fromkeys(set(TABLE_NAMES) - {"fetches"}, 0)
    )
    assert f"{TABLE_NAMES[-1]}.parquet" == LAST_WRITTEN_FILE


def make_run(runs: Path, name: str, started_s: float) -> Path:
    folder = runs / name
    folder.mkdir(parents=True)
    attempt = {"number": 1, "command": [], "argv": [], "world_size": 1, "started_s": started_s}
    (folder / "run.json").write_text(json.dumps({"version": 1, "attempts": [attempt]}))
    return folder


def test_a_run_is_found_by_name_path_or_as_the_latest(tmp_path: Path, monkeypatch):
    runs = tmp_path / "elsewhere"
    early, late = make_run(runs, "train-2", 50.0), make_run(runs, "train-1", 60.0)
    (runs / "train-3").mkdir()
    assert find_run(None, str(runs)) == late
    assert find_run("train-2", str(runs)) == early
    assert find_run(str(early)) == early
    monkeypatch.setenv("HEADRACE_RUNS_DIR", str(runs))
    assert find_run() == late
    monkeypatch.delenv("HEADRACE_RUNS_DIR")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="There is no run in runs"):
        find_run()
    with pytest.raises(UsageError, match=r"no run 'trian-1'.*Near it: train-1, train-2"):
        find_run("trian-1", str(runs))
    with pytest.raises(UsageError, match=r"no run\.json"):
        find_run(str(runs / "train-3"))
