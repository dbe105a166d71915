"""Records of long runs through a real collector: killed while it adds rows up, closed and read."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.core.errors import RecordsError
from headrace.observe.whatif.tables import CachedTables, columns
from headrace.records import reader
from headrace.records.collector import Collector
from headrace.records.data_frames import RunFrames
from headrace.records.reader import open_records
from headrace.records.ring import RingWriter
from headrace.records.schema import FETCHES, STACKS, RowLimits
from run_tables import row_of

# Drains for ever, and adds rows up and moves them out as often as it can.
COLLECTOR = """
import sys
from pathlib import Path
from headrace.records.collector import Collector
from headrace.records.schema import RowLimits
collector = Collector(Path(sys.argv[1]), "here", RowLimits(unchanged=50, sums=200, part=64))
while True:
    if collector.drain():
        print(flush=True)
"""
SECOND = 1_000_000_000
TEXT = pa.dictionary(pa.int32(), pa.string())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "records" / "attempt-1"
    (folder / "rings").mkdir(parents=True)
    return folder


def write_second(ring: RingWriter, second: int) -> None:
    for line in range(5):
        assert ring.write(
            STACKS, 1, 0, 0, 0, "work", f"data.py:{line}:get", second * SECOND, 10, line + 1, line,
            (second + 1) * SECOND,
        )  # fmt: skip
        assert ring.write(
            FETCHES, *row_of(FETCHES, batch=5 * second + line, start_ns=second * SECOND)
        )


def fetched(run: Path) -> list[int]:
    return open_records(run).table("fetches").column("batch").to_pylist()


def test_a_collector_killed_while_it_adds_up_and_moves_out_keeps_each_row_once(
    folder: Path, tmp_path: Path
):
    ring = RingWriter(folder / "rings" / "a.ring")
    second = 0
    for life in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", COLLECTOR, str(folder)], stdout=subprocess.PIPE
        )
        try:
            for _ in range(3 + random.Random(life).randrange(12)):
                for _ in range(20):
                    write_second(ring, second)
                    second += 1
                process.stdout.readline()  # it has drained meanwhile
            table = open_records(tmp_path).table("stacks")
            assert sum(table.column("samples").to_pylist()) == second * 50
            assert fetched(tmp_path) == list(range(second * 5))
            process.send_signal(signal.SIGKILL)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    ring.close()
    assert len(list(folder.glob("here.sqlite.parts/fetches-*.parquet"))) > 10
    table = open_records(tmp_path).table("stacks").to_pylist()
    assert len(table) < 500
    for line in range(5):
        rows = [row for row in table if row["stack"] == f"data.py:{line}:get"]
        assert sum(row["samples"] for row in rows) == second * 10
        assert sum(row["wall_ns"] for row in rows) == second * (line + 1)
        assert min(row["start_ns"] for row in rows) == 0
        assert max(row["end_ns"] for row in rows) == second * SECOND
    Collector(folder, "here").close()
    assert open_records(tmp_path).table("stacks").to_pylist() == table
    assert fetched(tmp_path) == list(range(second * 5))
    assert not list(folder.glob("here.*"))


def many_fetches(folder: Path) -> Collector:
    ring = RingWriter(folder / "rings" / "a.ring")
    collector = Collector(folder, "here", RowLimits(part=64))
    for batch in range(400):
        assert ring.write(FETCHES, *row_of(FETCHES, batch=batch, wait_ns=1))
        if batch % 50 == 49:
            collector.drain()
    ring.close()
    return collector


def test_a_part_that_the_store_does_not_name_is_none(folder: Path, tmp_path: Path):
    collector = many_fetches(folder)
    written = collector.store._parts.write("fetches")  # as if killed before the transaction
    assert written[0] == len(list(folder.glob("here.sqlite.parts/*.parquet")))
    assert fetched(tmp_path) == list(range(400))
    collector.store.move_out()
    assert fetched(tmp_path) == list(range(400))
    collector.close()
    assert fetched(tmp_path) == list(range(400))


def test_records_that_are_closed_while_they_are_read_are_read_closed(
    folder: Path, tmp_path: Path, monkeypatch
):
    collector = many_fetches(folder)
    read = reader.stored_tables

    def closed_meanwhile(*arguments):
        monkeypatch.setattr(reader, "stored_tables", read)
        collector.close()
        return read(*arguments)

    monkeypatch.setattr(reader, "stored_tables", closed_meanwhile)
    assert fetched(tmp_path) == list(range(400))


def test_a_lost_part_is_a_records_error(folder: Path, tmp_path: Path):
    many_fetches(folder)
    next(folder.glob("here.sqlite.parts/*.parquet")).unlink()
    with pytest.raises(RecordsError, match=r"fetches-00000\d.parquet cannot be read"):
        fetched(tmp_path)


def test_closed_records_are_read_column_by_column(folder: Path, tmp_path: Path):
    collector = many_fetches(folder)
    assert open_records(tmp_path).by_column("fetches") is None
    collector.close()
    found = open_records(tmp_path).by_column("fetches")
    assert (list(found), found.count) == (list(FETCHES.columns), 400)
    assert "waits" not in found
    two_columns_bytes = 2 * 400 * 8
    read = columns(CachedTables(open_records(tmp_path), two_columns_bytes), "fetches")
    batch = read["batch"]
    assert batch.tolist() == list(range(400))
    assert read["wait_ns"].tolist() == [1] * 400
    assert read["batch"] is batch
    assert len(read["rank"]) == len(read["loader"]) == 400
    assert read["batch"] is not batch
    assert read.get("waits") is None


def test_threads_may_read_a_closed_table_at_the_same_time(folder: Path, tmp_path: Path):
    many_fetches(folder).close()
    found = open_records(tmp_path).by_column("fetches")
    alone = {name: found[name] for name in found}
    wanted = [*found] * 300
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(found.__getitem__, wanted))
    assert all(each.equals(alone[name]) for name, each in zip(wanted, read, strict=True))


def test_texts_are_kept_once_in_memory_and_on_disk(folder: Path, tmp_path: Path):
    ring = RingWriter(folder / "rings" / "a.ring", 8 << 20)
    lines = [f"{number:03}" + 8000 * "x" for number in range(300)]  # more than a dictionary page
    for _ in range(20):
        for place, line in enumerate(lines):
            assert ring.write(STACKS, 1, 0, 0, 0, "work", line, place, 1, 1, 1, place)
    ring.close()
    collector = Collector(folder, "here")
    collector.drain()
    live = open_records(tmp_path).table("stacks")
    collector.close()
    closed = open_records(tmp_path).table("stacks")
    assert closed == live
    for table in (live, closed):
        stacks = table.column("stack")
        assert stacks.type == TEXT
        assert stacks.num_chunks == 1
        assert table.nbytes < 2 * sum(map(len, lines))
    group = pq.ParquetFile(folder / "stacks.parquet").metadata.row_group(0)
    column = group.column(group.num_columns - 6)
    assert column.path_in_schema == "stack"
    assert column.total_uncompressed_size < 2 * sum(map(len, lines))
    frame = RunFrames(tmp_path).stacks
    assert frame["stack"].dtype == "category"
    assert frame.groupby("phase", observed=True)["samples"].sum().to_dict() == {"work": 6000}


def test_records_of_an_older_version_have_plain_texts_and_no_ends(folder: Path, tmp_path: Path):
    ring = RingWriter(folder / "rings" / "a.ring")
    write_second(ring, 0)
    ring.close()
    Collector(folder, "here").close()
    table = pq.read_table(folder / "stacks.parquet").drop_columns(["end_ns"])
    for name in ("phase", "stack"):
        place = table.column_names.index(name)
        table = table.set_column(place, name, table.column(name).cast(pa.string()))
    pq.write_table(table, folder / "stacks.parquet", store_schema=False)
    found = open_records(tmp_path).table("stacks")
    assert found.column("end_ns").null_count == 5
    assert found.column("stack").type == TEXT
    assert found.column("stack").to_pylist() == [f"data.py:{line}:get" for line in range(5)]


def test_a_store_of_an_older_version_is_read_without_what_it_lacks(folder: Path, tmp_path: Path):
    ring = RingWriter(folder / "rings" / "a.ring")
    write_second(ring, 0)
    ring.close()
    collector = Collector(folder, "here")
    collector.drain()
    collector.store.connection.execute("ALTER TABLE stacks DROP COLUMN end_ns")
    found = open_records(tmp_path).table("stacks")
    assert found.column("end_ns").null_count == found.num_rows == 5
