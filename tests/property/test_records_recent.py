"""The last rows of a table, read from its end, are those that reading all of it gives."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.core.errors import RecordsError
from headrace.records.collector import Collector
from headrace.records.live_reader import (
    StepTotals,
    recent_rows,
    recorded_rank_count,
    row_ends_ns,
    rows_since,
)
from headrace.records.reader import Records
from headrace.records.schema import (
    BATCHES,
    DEVICE_STEPS,
    EVENTS,
    HOSTS,
    PROCESSES,
    STEPS,
    RowLimits,
    Table,
)
from records_folders import collector_of, kill
from run_tables import row_of

S = 1_000_000_000
DRAIN_NS = S // 4


def step(
    rank: int, start_ns: int, wall_ns: int, *, number: int = 9, kind: str = "train",
    samples: int = 0,
) -> tuple:  # fmt: skip
    values = dict.fromkeys(STEPS.columns, 0) | {
        "rank": rank, "step": number, "kind": kind, "start_ns": start_ns, "wall_ns": wall_ns,
        "data_wait_ns": wall_ns // 4, "samples": samples,
    }  # fmt: skip
    return tuple(values.values())


def drained(steps: list[tuple]) -> list[tuple]:
    """The order in which a collector stores them: drain by drain, rank by rank."""
    place = {name: number for number, name in enumerate(STEPS.columns)}
    return sorted(
        steps,
        key=lambda row: (
            (row[place["start_ns"]] + row[place["wall_ns"]]) // DRAIN_NS,
            row[place["rank"]],
            row[place["start_ns"]],
        ),
    )


def made(folder: Path, limits: RowLimits | None = None) -> tuple[Records, Collector]:
    return Records(folder, 1), collector_of(folder, limits)


def store(collector: Collector, *rows: tuple[Table, list[tuple]]) -> None:
    """Have a collector store rows, in one drain."""
    for table, each in rows:
        collector.add(table, each)
    collector.drain()


@settings(max_examples=20)
@given(
    st.lists(st.integers(1, 4 * S), min_size=1, max_size=4).flatmap(
        lambda walls: st.tuples(st.just(walls), st.floats(0, 1.1), st.integers(0, 40))
    ),
)
def test_what_is_read_from_the_end_is_what_ended_since(drawn: tuple[list[int], float, int]):
    walls, part, fewest = drawn
    random = np.random.default_rng(len(walls))
    steps = []
    for rank, wall in enumerate(walls):
        now = 0
        for _ in range(min(60 * S // wall, 1500)):
            took = int(wall * random.uniform(0.3, 1.7))
            steps.append(step(rank, now, took))
            now += took
    with tempfile.TemporaryDirectory() as folder:
        records, collector = made(Path(folder) / "run")
        store(collector, (STEPS, drained(steps)))
        whole = records.table("steps")
        since_ns = int(part * max(row_ends_ns(whole, "steps")))
        wanted = rows_since(whole, "steps", since_ns, fewest=fewest).to_pylist()
        assert recent_rows(records, "steps", since_ns, fewest=fewest).to_pylist() == wanted
        assert [row for row in wanted if row["start_ns"] + row["wall_ns"] >= since_ns] == [
            row for row in whole.to_pylist() if row["start_ns"] + row["wall_ns"] >= since_ns
        ]
        kill(collector)


@pytest.fixture
def long(tmp_path: Path) -> tuple[Records, Collector]:
    """Two ranks for 40,000 steps of 2 ms each, the stored order that of drains."""
    records, collector = made(tmp_path / "run")
    ms = S // 1000
    steps = [step(rank, 2 * ms * i, 2 * ms, number=i) for i in range(40_000) for rank in (0, 1)]
    store(collector, (STEPS, drained(steps)), (HOSTS, [("one", 2.0, 2**30, 0, 1, 0, "")]))
    return records, collector


def test_a_long_table_costs_no_more_than_its_end(
    long: tuple[Records, Collector], monkeypatch: pytest.MonkeyPatch
):
    records, _ = long
    steps_of_sqlite = [0]
    connect = sqlite3.connect

    def counted(*arguments, **options):
        connection = connect(*arguments, **options)

        def count() -> int:
            steps_of_sqlite[0] += 100
            return 0

        connection.set_progress_handler(count, 100)
        return connection

    monkeypatch.setattr(sqlite3, "connect", counted)
    assert recent_rows(records, "steps", 79 * S).num_rows == 501 + 501
    few = steps_of_sqlite[0]
    steps_of_sqlite[0] = 0
    assert records.table("steps").num_rows == 80_000
    assert few * 10 < steps_of_sqlite[0]


def test_more_than_the_most_is_cut_at_one_moment_for_all(long: tuple[Records, Collector]):
    records, _ = long
    rows = recent_rows(records, "steps", 0, most=3000).to_pylist()
    assert 1500 < len(rows) <= 3000
    by_rank = [[row["start_ns"] for row in rows if row["rank"] == rank] for rank in (0, 1)]
    assert by_rank[0] == by_rank[1]


def test_a_closed_table_and_one_without_times_are_read_too(long: tuple[Records, Collector]):
    records, collector = long
    assert recent_rows(records, "hosts", 79 * S).column("host").to_pylist() == ["one"]
    live = recent_rows(records, "steps", 79 * S, fewest=3)
    collector.close()
    assert recent_rows(records, "steps", 79 * S, fewest=3).to_pylist() == live.to_pylist()
    assert recent_rows(records, "hosts", 79 * S).column("host").to_pylist() == ["one"]
    assert recent_rows(records, "batches", 0).num_rows == 0


def test_a_table_that_is_none_and_a_newer_store_are_reported(long: tuple[Records, Collector]):
    records, collector = long
    with pytest.raises(RecordsError, match="No table 'nothing'"):
        recent_rows(records, "nothing", 0)
    collector.store.connection.execute("PRAGMA user_version = 99")
    with pytest.raises(RecordsError, match="newer Headrace"):
        recent_rows(records, "steps", 0)


def test_totals_read_each_step_once_and_only_training_after_the_warm_up(tmp_path: Path):
    records, collector = made(tmp_path / "run")
    totals = StepTotals(skipped=2)
    totals.add_new(records)
    assert totals.data_wait_share is None
    for first in (0, 50):
        store(
            collector,
            (STEPS, [step(0, i * S, S, number=i) for i in range(first, first + 50)]),
            (STEPS, [step(0, 0, 7 * S, number=9, kind="eval")]),
            (EVENTS, [(0, 1, "train", "a text like a kind", 0.0)]),
            (BATCHES, [tuple(range(len(BATCHES.columns)))]),
        )
        totals.add_new(records)
        totals.add_new(records)
    assert (totals.steps, totals.wall_ns) == (98, 98.0 * S)
    assert totals.data_wait_share == pytest.approx(0.25)


def test_totals_of_a_long_run_count_the_steps_that_were_moved_out(tmp_path: Path):
    records, collector = made(tmp_path / "run", RowLimits(part=1000))
    rows = 2 * 1000 + 10
    store(
        collector,
        (STEPS, [step(0, i * S, S, number=i) for i in range(rows)]),
        (STEPS, [step(0, 0, 7 * S, number=9, kind="eval")]),
    )
    assert list(records.folder.rglob("steps-*.parquet"))
    early, late = StepTotals(skipped=2), StepTotals(skipped=2)
    early.add_new(records)
    store(collector, (STEPS, [step(0, rows * S, S, number=rows)]))
    for totals in (early, late):
        totals.add_new(records)
        assert totals.steps == rows + 1 - 2
        assert totals.data_wait_share == pytest.approx(0.25)


@settings(max_examples=20, deadline=None)
@given(drains=st.lists(st.tuples(st.integers(1, 250), st.booleans()), min_size=1, max_size=10))
@example(drains=[(250, False), (10, True), (10, True)])  # rows are moved before the first look,
@example(drains=[(250, True), (10, True), (10, False)])  # those that were read later,
@example(drains=[(150, True), (250, False), (50, False)])  # partly read ones, and unread ones
@example(drains=[(90, True), (90, False), (90, True), (250, False), (250, False), (9, True)])
def test_totals_are_those_of_all_steps_whenever_they_are_read_and_moved(
    drains: list[tuple[int, bool]],
):
    """Steps of three ranks, with evaluation, and whether somebody looks after each drain."""
    steps: list[tuple[int, int, str, int, int]] = []  # rank, number, kind, time, samples
    totals, late = StepTotals(skipped=2), StepTotals(skipped=2)
    with tempfile.TemporaryDirectory() as folder:
        records, collector = made(Path(folder) / "run", RowLimits(part=100))
        for count, is_looked_at in drains:
            places = range(len(steps), len(steps) + count)
            new = [
                (place % 3, place // 3, "train" if place % 5 else "eval", 4 + place, place % 7)
                for place in places
            ]
            rows = [
                step(rank, 0, wall_ns, number=number, kind=kind, samples=samples)
                for rank, number, kind, wall_ns, samples in new
            ]
            store(collector, (STEPS, rows))
            steps += new
            if is_looked_at:
                totals.add_new(records)
        counted = [each for each in steps if each[2] == "train" and each[1] >= 2]
        ranks = {rank for rank, *_ in counted}
        wall_ns, samples = (sum(each[place] for each in counted) for place in (3, 4))
        for each in (totals, late):
            each.add_new(records)
            assert (each.steps, each.wall_ns) == (len(counted), wall_ns)
            assert (each.samples, each.ranks) == (samples, ranks)
            if samples:
                rate = pytest.approx(samples / wall_ns * 1e9 * len(ranks))
                assert each.samples_per_s == rate
        kill(collector)


@pytest.mark.parametrize("is_closed", [False, True])
def test_of_processes_the_ranks_come_however_many_workers_began_since(
    tmp_path: Path, is_closed: bool
):
    records, collector = made(tmp_path / "run")
    assert recorded_rank_count(records) == 0
    ranks = [
        row_of(PROCESSES, pid=pid, role="rank", rank=rank, loader=-1, worker=-1, started_ns=pid)
        for pid, rank in ((1, 0), (2, 1), (5000, 1))  # the last one was started again
    ]
    workers = [
        row_of(PROCESSES, pid=pid, role="worker", rank=pid % 2, worker=pid % 4, started_ns=pid)
        for pid in range(10, 3010)
    ]
    store(collector, (PROCESSES, [*ranks[:2], *workers[:1000], ranks[2], *workers[1000:]]))
    if is_closed:
        collector.close()
    for fewest in (0, 1, 1024):
        found = recent_rows(records, "processes", 2**62, fewest=fewest).to_pylist()
        assert [row["pid"] for row in found if row["role"] == "rank"] == [1, 2, 5000]
        others = [row["pid"] for row in found if row["role"] == "worker"]
        assert others == list(range(3010 - fewest, 3010))
    assert recorded_rank_count(records) == 2


def test_the_accelerators_share_is_by_its_own_clock_where_that_is_recorded(tmp_path: Path):
    records, collector = made(tmp_path / "run", RowLimits(part=1000))
    totals, later = StepTotals(skipped=2), StepTotals(skipped=2)
    steps = [step(0, i * S, S, number=i) for i in range(1010)]  # a quarter of each is data wait
    store(collector, (STEPS, steps))
    totals.add_new(records)
    assert totals.accelerator_wait_share == totals.data_wait_share == pytest.approx(0.25)
    device = [(0, number, "train", S, S // 10, *[0] * 6) for number in range(1010)]
    evaluated = (0, 9, "eval", S, S, *[0] * 6)
    store(collector, (DEVICE_STEPS, [*device, evaluated]))
    for each in (totals, later):
        each.add_new(records)
        assert each.device_wall_ns == (1010 - 2) * S
        assert each.accelerator_wait_share == pytest.approx(0.1)
    store(collector, (DEVICE_STEPS, [(0, 1010, "train", 5000 * S, 5000 * S, *[0] * 6)]))
    totals.add_new(records)
    assert totals.accelerator_wait_share == totals.data_wait_share  # it waits no longer than that


def test_of_a_table_without_times_the_last_rows_come(tmp_path: Path):
    records, collector = made(tmp_path / "run")
    store(collector, (DEVICE_STEPS, [(0, number, "train", *[1] * 8) for number in range(50)]))
    found = recent_rows(records, "device_steps", 0, most=10)
    assert found.column("step").to_pylist() == list(range(40, 50))
