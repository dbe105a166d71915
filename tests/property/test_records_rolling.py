"""Rows that are added up: sums stay what they were, and a store stays small."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.records import compaction
from headrace.records.parquet_tables import stored_tables
from headrace.records.schema import PROCESS_USAGE, STACKS, STEPS, TRANSFORMS, Table
from headrace.records.store import RecordStore, open_read_only

SECOND = 1_000_000_000
SUMS = {STACKS: ("samples", "wall_ns", "cpu_ns"), TRANSFORMS: ("calls", "wall_ns", "cpu_ns")}
MOMENTS = {"start_ns", "end_ns"}


@contextmanager
def limits(first: int, sums: int, means: int) -> Iterator[None]:
    kept = compaction.UNCHANGED_ROWS, compaction.MAX_SUM_ROWS, compaction.MAX_MEAN_ROWS
    compaction.UNCHANGED_ROWS, compaction.MAX_SUM_ROWS, compaction.MAX_MEAN_ROWS = (
        first,
        sums,
        means,
    )
    try:
        yield
    finally:
        compaction.UNCHANGED_ROWS, compaction.MAX_SUM_ROWS, compaction.MAX_MEAN_ROWS = kept


def rows_of(store: RecordStore, table: Table) -> list[dict]:
    pieces = stored_tables(store.connection, store.path, table.name)
    return [row for piece in pieces for row in piece.to_pylist()]


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


def drain(store: RecordStore, rows: list[tuple[Table, tuple]], dies: str) -> bool:
    """Do what the collector does, up to where it is killed; return whether rows were kept."""
    with suppress(Killed), store.transaction():
        for table, row in rows:
            store.add(table, [row])
        if dies == "in the drain":
            raise Killed
    if dies == "no":
        store.roll_up()
    with suppress(Killed), store.transaction():
        for rolled in store._rolled.values():
            rolled.run()
        raise Killed
    return dies != "in the drain"


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(
        st.tuples(st.lists(STACK_ROWS | TRANSFORM_ROWS, max_size=30), DEATHS), max_size=12
    ),
    first=st.integers(0, 20),
    most=st.integers(1, 40),
)
def test_no_sum_is_lost_or_counted_twice_wherever_the_collector_dies(parts, first, most):
    with limits(first, most, most), tempfile.TemporaryDirectory() as folder:
        written: dict[Table, list[dict]] = {STACKS: [], TRANSFORMS: []}
        for rows, dies in parts:
            store = RecordStore(Path(folder, "store"))
            for table, row in rows if drain(store, rows, dies) else ():
                written[table].append(dict(zip(table.columns, row, strict=True)))
            store.close()
        store = RecordStore(Path(folder, "store"))
        for table, rows in written.items():
            kept = rows_of(store, table)
            assert sums_by_key(table, kept) == sums_by_key(table, rows)
            assert kept[:first] == rows[:first]
        stacks = rows_of(store, STACKS)
        for bound, name in ((min, "start_ns"), (max, "end_ns")):
            values = [row[name] for row in written[STACKS]]
            assert bound((row[name] for row in stacks), default=0) == bound(values, default=0)
        store.close()


def played(store: RecordStore, seconds: int, lines: int = 6) -> None:
    """Write what two workers write in so many seconds, and roll up after each."""
    for second in range(seconds):
        with store.transaction():
            store.add(
                STACKS,
                [
                    (10 + worker, 0, 0, worker, "work", f"data.py:{line}:get", second * SECOND, 10,
                     SECOND // lines, SECOND // lines, (second + 1) * SECOND)
                    for worker in range(2) for line in range(lines)
                ],
            )  # fmt: skip
            store.add(PROCESS_USAGE, [(second * SECOND, 10, 50.0, 2**30 + second, 4, 100)])
            store.add_system(["t_ns", "core_0_percent", "memory_used_bytes"], [second, 25.0, 2**33])
        store.roll_up()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RecordStore]:
    with limits(first=60, sums=300, means=100):
        store = RecordStore(tmp_path / "store")
        store.declare_system(["t_ns", "core_0_percent", "memory_used_bytes"])
        yield store
        store.close()


def test_a_long_run_is_bounded_and_its_first_rows_stay_as_they_were(store: RecordStore):
    played(store, seconds=2000)
    stacks = rows_of(store, STACKS)
    assert len(stacks) <= 300
    assert sum(row["samples"] for row in stacks) == 2000 * 2 * 6 * 10
    assert all(row["end_ns"] - row["start_ns"] == SECOND for row in stacks[:60])
    # What lies between the first rows and the last was added up, all of it over as long.
    spans = [row["end_ns"] - row["start_ns"] for row in stacks[60:]]
    assert max(spans) >= 100 * SECOND
    assert sum(SECOND < span < max(spans) for span in spans) <= 2 * 12
    assert len(rows_of(store, PROCESS_USAGE)) <= 100


def test_a_short_run_is_kept_row_by_row(store: RecordStore):
    played(store, seconds=25)
    assert len(rows_of(store, STACKS)) == 25 * 12
    assert len(rows_of(store, PROCESS_USAGE)) == 25


def test_what_is_a_state_becomes_its_mean_and_what_adds_up_its_sum(store: RecordStore):
    played(store, seconds=128)
    usage = rows_of(store, PROCESS_USAGE)
    assert sum(row["read_bytes"] for row in usage) == 12_800
    assert {row["cpu_percent"] for row in usage} == {50.0}
    assert {row["threads"] for row in usage} == {4}
    assert usage[0]["t_ns"] == SECOND  # the second look of the first two seconds
    assert usage[0]["resident_bytes"] - 2**30 in {0, 1}
    (system,) = store.connection.execute("SELECT COUNT(*) FROM system").fetchone()
    assert system <= 100
    assert store.connection.execute(
        "SELECT DISTINCT core_0_percent, memory_used_bytes FROM system"
    ).fetchall() == [(25.0, 2**33)]


def test_bytes_that_are_not_known_do_not_count_against_those_that_are(store: RecordStore):
    rows = [(second * SECOND, 10, 1.0, 1, 1, [7, -1][second % 2]) for second in range(120)]
    rows += [(second * SECOND, 11, 1.0, 1, 1, -1) for second in range(120)]
    with store.transaction():
        store.add(PROCESS_USAGE, rows)
    store.roll_up()
    kept = rows_of(store, PROCESS_USAGE)
    assert len(kept) < len(rows)
    assert sum(row["read_bytes"] for row in kept if row["pid"] == 10) == 60 * 7
    assert {row["read_bytes"] for row in kept if row["pid"] == 11} == {-1}


def test_rows_that_nothing_can_join_are_not_tried_again_at_every_drain(store: RecordStore):
    rows = [
        (pid, 0, 0, 0, "work", "a:1:f", 0, 1, 1, 1, SECOND) for pid in range(400)
    ]  # a process each
    with store.transaction():
        store.add(STACKS, rows)
    store.roll_up()
    assert len(rows_of(store, STACKS)) == 400
    assert not store._rolled["stacks"].due


def test_steps_are_never_added_up(store: RecordStore):
    row = tuple((dict.fromkeys(STEPS.columns, 0) | {"kind": "train"}).values())
    with store.transaction():
        store.add(STEPS, [row] * 1000)
    store.roll_up()
    assert len(rows_of(store, STEPS)) == 1000


def test_a_reader_sees_the_rows_of_one_moment(store: RecordStore, tmp_path: Path):
    played(store, seconds=20)
    with closing(open_read_only(tmp_path / "store")) as reader:
        reader.execute("BEGIN")
        total = "SELECT COUNT(*), SUM(samples) FROM stacks"
        before = reader.execute(total).fetchone()
        played(store, seconds=10)  # now it is over the limit
        assert len(rows_of(store, STACKS)) < 30 * 12
        assert reader.execute(total).fetchone() == before
        reader.execute("COMMIT")
        count, samples = reader.execute(total).fetchone()
        assert samples == 30 * 12 * 10
        assert count == len(rows_of(store, STACKS))
