"""Rows that are added up: sums stay what they were, and a store stays small."""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.records.collector import Collector
from headrace.records.reader import Records
from headrace.records.schema import PROCESS_USAGE, STACKS, STEPS, TRANSFORMS, RowLimits, Table
from records_folders import collector_of, kill

SECOND = 1_000_000_000
SUMS = {STACKS: ("samples", "wall_ns", "cpu_ns"), TRANSFORMS: ("calls", "wall_ns", "cpu_ns")}
MOMENTS = {"start_ns", "end_ns"}


def rows_of(run: Path, table: Table) -> list[dict]:
    return Records(run, 1).table(table.name).to_pylist()


def sums_by_key(table: Table, rows: list[dict]) -> dict[tuple, Counter]:
    found: dict[tuple, Counter] = {}
    for row in rows:
        key = tuple(row[name] for name in table.columns if name not in {*SUMS[table], *MOMENTS})
        found.setdefault(key, Counter()).update({name: row[name] for name in SUMS[table]})
    return found


TIMES = st.integers(0, 3000).map(lambda tenths: tenths * SECOND // 10)
AMOUNTS = st.integers(0, 2**40)
PHASES = st.sampled_from(["work", "idle"])
STACK_ROWS = st.tuples(
    st.integers(1, 2), st.just(0), st.just(0), st.integers(-1, 1), PHASES,
    st.sampled_from(["a:1:f", "a:2:f", "b:1:g"]), TIMES, AMOUNTS, AMOUNTS, AMOUNTS, TIMES,
).map(lambda row: (STACKS, row))  # fmt: skip
TRANSFORM_ROWS = st.tuples(
    st.just(0), st.just(0), st.integers(0, 1), st.sampled_from(["crop", "blur"]), st.just("a"),
    st.just(3), TIMES, AMOUNTS, AMOUNTS, AMOUNTS, st.just(8),
).map(lambda row: (TRANSFORMS, row))  # fmt: skip
DEATHS = st.sampled_from(["in the drain", "in the roll-up", "no"])


class Killed(BaseException):
    pass


def drain(collector: Collector, rows: list[tuple[Table, tuple]], dies: str, when: int) -> bool:
    """Do what the collector does, up to where it is killed; return whether rows were kept.

    In the roll-up that is after `when` instructions of SQLite's.
    """
    store = collector.store
    with suppress(Killed), store.transaction():
        for table, row in rows:
            store.add(table, [row])
        if dies == "in the drain":
            raise Killed
    if dies == "in the roll-up":
        store.connection.set_progress_handler(lambda: 1, when)
    with suppress(sqlite3.OperationalError):
        store.roll_up()
    return dies != "in the drain"


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(
        st.tuples(st.lists(STACK_ROWS | TRANSFORM_ROWS, max_size=30), DEATHS, st.integers(1, 2000)),
        max_size=12,
    ),
    first=st.integers(0, 20),
    most=st.integers(1, 40),
)
def test_no_sum_is_lost_or_counted_twice_wherever_the_collector_dies(parts, first, most):
    limits = RowLimits(unchanged=first, sums=most, means=most)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        written: dict[Table, list[dict]] = {STACKS: [], TRANSFORMS: []}
        for rows, dies, when in [([], "no", 1), *parts]:
            collector = collector_of(run, limits)
            for table, row in rows if drain(collector, rows, dies, when) else ():
                written[table].append(dict(zip(table.columns, row, strict=True)))
            kill(collector)
        for table, rows in written.items():
            kept = rows_of(run, table)
            assert sums_by_key(table, kept) == sums_by_key(table, rows)
            assert kept[:first] == rows[:first]
        stacks = rows_of(run, STACKS)
        for bound, name in ((min, "start_ns"), (max, "end_ns")):
            values = [row[name] for row in written[STACKS]]
            assert bound((row[name] for row in stacks), default=0) == bound(values, default=0)


def played(collector: Collector, seconds: int, lines: int = 6) -> None:
    """Write what two workers write in so many seconds, and drain after each."""
    for second in range(seconds):
        collector.add(
            STACKS,
            [
                (10 + worker, 0, 0, worker, "work", f"data.py:{line}:get", second * SECOND, 10,
                 SECOND // lines, SECOND // lines, (second + 1) * SECOND)
                for worker in range(2) for line in range(lines)
            ],
        )  # fmt: skip
        collector.add(PROCESS_USAGE, [(second * SECOND, 10, 50.0, 2**30 + second, 4, 100)])
        collector.add_system(["t_ns", "core_0_percent", "memory_used_bytes"], [second, 25.0, 2**33])
        collector.drain()


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    collector = collector_of(tmp_path, RowLimits(unchanged=60, sums=300, means=100))
    collector.store.declare_system(["t_ns", "core_0_percent", "memory_used_bytes"])
    yield collector
    kill(collector)


def test_a_long_run_is_bounded_and_its_first_rows_stay_as_they_were(
    collector: Collector, tmp_path: Path
):
    played(collector, seconds=2000)
    stacks = rows_of(tmp_path, STACKS)
    assert len(stacks) <= 300
    assert sum(row["samples"] for row in stacks) == 2000 * 2 * 6 * 10
    assert all(row["end_ns"] - row["start_ns"] == SECOND for row in stacks[:60])
    # What lies between the first rows and the last was added up, all of it over as long.
    spans = [row["end_ns"] - row["start_ns"] for row in stacks[60:]]
    assert max(spans) >= 100 * SECOND
    assert sum(SECOND < span < max(spans) for span in spans) <= 2 * 12
    assert len(rows_of(tmp_path, PROCESS_USAGE)) <= 100


def test_a_short_run_is_kept_row_by_row(collector: Collector, tmp_path: Path):
    played(collector, seconds=25)
    assert len(rows_of(tmp_path, STACKS)) == 25 * 12
    assert len(rows_of(tmp_path, PROCESS_USAGE)) == 25


def test_what_is_a_state_becomes_its_mean_and_what_adds_up_its_sum(
    collector: Collector, tmp_path: Path
):
    played(collector, seconds=128)
    usage = rows_of(tmp_path, PROCESS_USAGE)
    assert sum(row["read_bytes"] for row in usage) == 12_800
    assert {row["cpu_percent"] for row in usage} == {50.0}
    assert {row["threads"] for row in usage} == {4}
    assert usage[0]["t_ns"] == SECOND  # the second look of the first two seconds
    assert usage[0]["resident_bytes"] - 2**30 in {0, 1}
    system = Records(tmp_path, 1).table("system").to_pylist()
    assert len(system) <= 100
    assert {(row["core_0_percent"], row["memory_used_bytes"]) for row in system} == {(25.0, 2**33)}


def test_bytes_that_are_not_known_do_not_count_against_those_that_are(
    collector: Collector, tmp_path: Path
):
    rows = [(second * SECOND, 10, 1.0, 1, 1, [7, -1][second % 2]) for second in range(120)]
    rows += [(second * SECOND, 11, 1.0, 1, 1, -1) for second in range(120)]
    collector.add(PROCESS_USAGE, rows)
    collector.drain()
    kept = rows_of(tmp_path, PROCESS_USAGE)
    assert len(kept) < len(rows)
    assert sum(row["read_bytes"] for row in kept if row["pid"] == 10) == 60 * 7
    assert {row["read_bytes"] for row in kept if row["pid"] == 11} == {-1}


def test_rows_that_nothing_can_join_are_not_tried_again_at_every_drain(
    collector: Collector, tmp_path: Path
):
    rows = [
        (pid, 0, 0, 0, "work", "a:1:f", 0, 1, 1, 1, SECOND) for pid in range(400)
    ]  # a process each
    collector.add(STACKS, rows)
    collector.drain()
    assert len(rows_of(tmp_path, STACKS)) == 400
    changed = collector.store.connection.total_changes
    collector.drain()
    assert collector.store.connection.total_changes == changed


def test_steps_are_never_added_up(collector: Collector, tmp_path: Path):
    row = tuple((dict.fromkeys(STEPS.columns, 0) | {"kind": "train"}).values())
    collector.add(STEPS, [row] * 1000)
    collector.drain()
    assert len(rows_of(tmp_path, STEPS)) == 1000


def test_a_reader_sees_the_rows_of_one_moment(collector: Collector, tmp_path: Path):
    played(collector, seconds=20)
    store = f"{collector.store.path.as_uri()}?mode=ro"
    with closing(sqlite3.connect(store, uri=True, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        total = "SELECT COUNT(*), SUM(samples) FROM stacks"
        before = reader.execute(total).fetchone()
        played(collector, seconds=10)  # now it is over the limit
        assert len(rows_of(tmp_path, STACKS)) < 30 * 12
        assert reader.execute(total).fetchone() == before
        reader.execute("COMMIT")
        count, samples = reader.execute(total).fetchone()
        assert samples == 30 * 12 * 10
        assert count == len(rows_of(tmp_path, STACKS))
