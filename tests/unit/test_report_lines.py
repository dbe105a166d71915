"""Lines over time: nothing is lost or made by pooling, and short stalls stay visible."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.report.charts.base import ChartSpan, time_axis
from headrace.report.charts.lines import (
    data_wait_chart,
    memory_chart,
    ready_chart,
    samples_chart,
    traffic_chart,
)
from run_tables import MS, Run, RunTables, play


def widths_s(tables: RunTables, chart) -> np.ndarray:
    begin, end = chart.span
    return np.full(len(chart.series[0].x), (end - begin) / len(chart.series[0].x))


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("columns", [7, 2000])
def test_all_samples_are_in_the_rates(ranks: int, columns: int):
    tables = play(Run(ranks=ranks, batches=60, cores=8, workers=2))
    trained = [row for row in tables.rows["steps"] if row["kind"] == "train"]
    chart = samples_chart(tables, ChartSpan.of(time_axis(tables), columns=columns))
    (line,) = chart.series
    assert len(line.x) <= min(columns, 400)
    total = float((line.y * widths_s(tables, chart)).sum())
    assert total == pytest.approx(sum(row["samples"] for row in trained), rel=1e-3)


def test_a_part_of_the_time_has_its_part_of_the_samples():
    tables = play(Run(batches=60))
    axis = time_axis(tables)
    steps = sorted(tables.rows["steps"], key=lambda row: row["start_ns"])
    begin, end = steps[20]["start_ns"], steps[40]["start_ns"]
    span = ChartSpan.of(axis, (axis.seconds(begin), axis.seconds(end)), 50)
    chart = samples_chart(tables, span)
    total = float((chart.series[0].y * widths_s(tables, chart)).sum())
    assert total == pytest.approx(sum(row["samples"] for row in steps[20:40]), rel=0.02)


def test_the_waiting_share_is_that_of_the_steps():
    tables = play(Run(batches=60, workers=1, service_ms=40))
    rows = tables.rows["steps"]
    share = sum(row["data_wait_ns"] for row in rows) / sum(row["wall_ns"] for row in rows)
    (line,) = data_wait_chart(tables).series
    assert np.nanmean(line.y) == pytest.approx(100 * share, abs=10)
    assert np.nanmax(line.y) <= 100
    assert np.nanmin(line.y) >= 0


def test_samples_that_were_not_counted_make_no_rate():
    tables = play(Run(batches=20))
    tables.rows["steps"][7]["samples"] = -1
    assert samples_chart(tables) is None


def test_the_fewest_batches_that_lay_ready_are_seen():
    tables = play(Run(batches=3000, service_ms=1, workers=4))
    for row in tables.rows["fetches"]:
        row["ready"] = 4
    tables.rows["fetches"][1500]["ready"] = 0
    mean, fewest = ready_chart(tables).series
    assert np.nanmin(fewest.y) == 0
    assert np.nanmin(mean.y) > 0


def test_the_most_memory_of_a_moment_is_seen_and_what_is_not_recorded_is_left_out():
    tables = play(Run(batches=200, busy_cores=2))
    used = [2_000_000_000] * len(tables.system["t_ns"])
    used[len(used) // 2] = 9_000_000_000
    tables.system["memory_used_bytes"] = used
    chart = memory_chart(tables)
    (line,) = chart.series
    assert (line.name, np.nanmax(line.y)) == ("used by all processes", 9)


def test_what_is_used_is_known_where_a_span_begins_between_two_samples():
    tables = play(Run(batches=200))
    tables.system = {
        "t_ns": [at_ms * MS for at_ms in range(1000, 3001, 500)],
        "memory_used_bytes": [3_000_000_000] * 5,
    }
    axis = time_axis(tables)
    begin, end = (axis.seconds(at_ms * MS) for at_ms in (700, 2900))
    (line,) = memory_chart(tables, ChartSpan.of(axis, (begin, end))).series
    assert (line.y == 3).all()


def test_nothing_recorded_draws_nothing():
    empty = RunTables()
    for draw in (samples_chart, data_wait_chart, ready_chart, memory_chart, traffic_chart):
        assert draw(empty) is None


def test_a_stall_of_a_rank_lowers_the_rate_where_it_is():
    tables = play(Run(batches=400, workers=4, service_ms=1))
    rows = sorted(tables.rows["steps"], key=lambda row: row["start_ns"])
    shift = 2000 * MS
    for row in rows[200:]:
        row["start_ns"] += shift
    rows[199]["wall_ns"] += shift
    rows[199]["data_wait_ns"] += shift
    chart = samples_chart(tables)
    known = chart.series[0].y[chart.series[0].y > 0]
    assert known.min() < 0.2 * np.median(known)
