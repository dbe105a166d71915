"""The doctor on records of long runs: rolled up, and of more steps than can be drawn at once."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.evidence import gather_evidence
from headrace.observe.doctor.remedies import predict_without
from headrace.observe.doctor.stack_samples import read_stack_samples, samples_during
from headrace.observe.whatif.comparison import compare
from headrace.observe.whatif.tables import columns
from headrace.records.reader import Records
from headrace.records.schema import STACKS, TRANSFORMS, RowLimits
from headrace.report.charts.flame import read_calls
from records_folders import collector_of, kill
from run_tables import AUGMENT, SCRIPT, WORKER_LOOP, Run, RunTables, play, stack

SECOND = 1_000_000_000
BLUR = stack(WORKER_LOOP, f"{AUGMENT}:31:RandomBlur.__call__")
DECODE = stack(WORKER_LOOP, f"{AUGMENT}:12:decode")


class RolledUp:
    """Tables of a run whose stacks and transforms went through a collector that rolls them up."""

    def __init__(self, tables: RunTables, run: Path) -> None:
        self._tables = tables
        self._records = Records(run, 1)
        collector = collector_of(run, RowLimits(unchanged=20, sums=60))
        for table in (STACKS, TRANSFORMS):
            rows = [tuple(row.values()) for row in tables.rows[table.name]]
            for at in range(0, len(rows), 20):
                collector.add(table, rows[at : at + 20])
                collector.drain()
        kill(collector)

    def table(self, name: str) -> pa.Table:
        is_rolled_up = name in {"stacks", "transforms"}
        return (self._records if is_rolled_up else self._tables).table(name)


def starved() -> RunTables:
    return play(
        Run(
            workers=2, service_ms=60, batches=900, busy_cores=2.2,
            worker_stacks=[(BLUR, 0.7, 1.0), (DECODE, 0.3, 1.0)],
            rank_stacks=[(stack(f"{SCRIPT}:50:main"), "forward", 0.2, 1.0)],
            transforms=[("Faces.transform: RandomBlur", AUGMENT, 30, 0.7)],
        )
    )  # fmt: skip


def test_the_diagnosis_of_rolled_up_records_is_that_of_the_records(tmp_path: Path):
    tables = starved()
    rolled = RolledUp(tables, tmp_path)
    assert rolled.table("stacks").num_rows <= 60 < tables.table("stacks").num_rows
    assert diagnose(rolled).to_json() == diagnose(tables).to_json()
    assert diagnose(rolled).findings[0].cause.line == 31


def test_a_flame_of_rolled_up_records_is_that_of_the_records(tmp_path: Path):
    tables = starved()
    flame, expected = (read_calls(each, "workers") for each in (RolledUp(tables, tmp_path), tables))
    assert (flame.wall_ns, flame.cpu_ns) == (expected.wall_ns, expected.cpu_ns)
    assert flame.below.keys() == expected.below.keys()


def test_a_stack_is_one_sighting_however_often_it_was_seen(tmp_path: Path):
    tables = starved()
    stacks = columns(tables, "stacks")
    sightings = read_stack_samples(stacks, stacks["worker"] >= 0)
    assert [str(each.own_frame) for each in sightings] == [
        "ann/augment.py:RandomBlur.__call__", "ann/augment.py:decode"
    ]  # fmt: skip
    assert sum(each.wall_ns for each in sightings) == stacks["wall_ns"][stacks["worker"] >= 0].sum()


def seen(*spans: tuple[str, int, int]) -> tuple:
    tables = RunTables()
    for text, start_s, end_s in spans:
        tables.add(
            "stacks", stack=f"{SCRIPT}:{text}", phase="other", start_ns=start_s * SECOND,
            end_ns=end_s * SECOND, wall_ns=SECOND,
        )  # fmt: skip
    stacks = columns(tables, "stacks")
    return read_stack_samples(stacks, stacks["rank"] == 0)


def at(*seconds: int, rank: int = 0) -> dict:
    begins = np.array(seconds, dtype=np.int64) * SECOND
    return {rank: (begins, begins + SECOND // 2)}


def names(sightings) -> list[str]:
    return [each.frames[0].function for each in sightings]


def test_what_was_seen_by_the_second_shows_more_than_what_was_added_up():
    sightings = seen(("1:save", 10, 11), ("2:step", 20, 21), ("3:much", 60, 120))
    assert names(samples_during(sightings, at(10, 70))) == ["save"]
    assert names(samples_during(sightings, at(70))) == ["much"]
    assert names(samples_during(sightings, at(40))) == []
    assert samples_during(sightings, at(10, rank=1)) == []


def test_only_the_rows_at_that_time_count():
    (save,) = samples_during(seen(("1:save", 10, 11), ("1:save", 30, 31)), at(30))
    assert save.wall_ns == SECOND
    assert save.rows["start_ns"].tolist() == [30 * SECOND]


def test_outliers_late_in_a_long_run_are_reported_by_rolled_up_stacks(tmp_path: Path):
    save = stack(f"{SCRIPT}:70:main", f"{SCRIPT}:80:save")
    run = Run(workers=4, service_ms=8, batches=3000, busy_cores=3)
    run.outlier_every, run.outlier_ms = 500, 3000.0
    run.rank_stacks = [(stack(f"{SCRIPT}:50:main"), "forward", 0.7, 1.0), (save, "other", 0.2, 0.5)]
    rolled = RolledUp(play(run), tmp_path)
    worst = diagnose(rolled).findings[0]
    assert worst.rule == "step-outliers"
    assert worst.cause.line == 80


@pytest.mark.long
def test_a_remedy_of_very_many_steps_is_drawn_in_bounded_memory():
    evidence = gather_evidence(play(Run(workers=2, service_ms=20, batches=25_000, busy_cores=2)))
    wall = evidence.steps.wall_ns
    tracemalloc.start()
    prediction = predict_without(evidence, 0.5 * wall)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert prediction.speedup == pytest.approx(2.0, rel=0.01)
    assert prediction.low <= prediction.speedup <= prediction.high
    assert peak < 100e6


def test_very_long_runs_are_compared_in_bounded_memory():
    before, after = (play(Run(workers=1, batches=12_000, seed=seed)) for seed in (1, 2))
    tracemalloc.start()
    comparison = compare(before, after)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert comparison.low <= comparison.speedup <= comparison.high
    assert not comparison.differ
    assert peak < 250e6
