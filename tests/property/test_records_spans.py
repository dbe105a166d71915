"""A span of a long run: its rows are those of the whole table, and totals lose nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.observe.whatif.offload_stats import LOADER_EVENT
from headrace.observe.whatif.tables import CachedTables
from headrace.records.collector import Collector
from headrace.records.live_reader import row_spans_ns
from headrace.records.reader import Records
from headrace.records.schema import (
    BATCHES,
    EVENTS,
    FETCHES,
    HOSTS,
    PHASES,
    PROCESSES,
    STEPS,
    RowLimits,
    Table,
)
from headrace.records.span_reader import SpanReader
from headrace.report.charts.base import ChartSpan, TimeAxis, time_axis
from headrace.report.charts.heatmap import UNKNOWN_PERCENT, heatmap_chart
from headrace.report.charts.lines import data_wait_chart, ready_chart, samples_chart
from headrace.report.charts.long_runs import SpanRows, long_time_axis
from headrace.report.charts.steps import steps_chart
from headrace.report.open_run import open_run
from headrace.report.span_tables import SpanTables
from records_folders import collector_of, kill

MS = 1_000_000
TICK_NS = 500 * MS
NAMES = ("steps", "fetches", "batches", "system")
EVER = (0, 2**62)


def add(collector: Collector, table: Table, **values: Any) -> None:
    row: dict[str, Any] = {each.name: "" if each.kind == "text" else 0 for each in table.fields}
    collector.add(table, [tuple((row | values).values())])


def play(run: Path, walls_ms: list[int], *, ranks: int, seed: int, closes: bool) -> Collector:
    """Store steps of some lengths on every rank, each on a host of its own; return the collector.

    So few rows fit the store that parts are written every few steps.
    """
    random = np.random.default_rng(seed)
    collector = collector_of(run, RowLimits(part=16, totals=40, means=40))
    columns = ["t_ns", "host", "core_0_percent", "memory_used_bytes"]
    collector.store.declare_system(columns)
    for number in range(ranks):
        here = {"number": number, "instance_group": "train"}
        add(collector, HOSTS, host=f"node-{number}", **here)
        its = {"pid": number, "rank": number, "host": number, "worker": -1}
        add(collector, PROCESSES, role="rank", started_ns=1, **its)
    add(collector, EVENTS, at_ns=MS, kind=LOADER_EVENT)
    now = MS
    for number, wall_ms in enumerate(walls_ms):
        wall = wall_ms * MS
        for rank in range(ranks):
            phases = random.dirichlet(np.ones(len(PHASES))) * wall
            spent = {f"{phase}_ns": int(ns) for phase, ns in zip(PHASES, phases, strict=True)}
            kind = "eval" if number % 7 == 6 else "train"
            its = {"rank": rank, "start_ns": now}
            spent["samples"] = int(random.integers(1, 9))
            add(collector, STEPS, step=number, kind=kind, wall_ns=wall, **spent, **its)
            ready, ended = int(random.integers(-1, 5)), int(number % 11 == 10)
            waited = {"wait_ns": wall // 5, "ready": ready, "ended": ended}
            add(collector, FETCHES, batch=number, **waited, **its)
            made = {"worker": number % 2, "batch": number // 2, "wall_ns": wall // 2}
            add(collector, BATCHES, **made, **its)
            collector.add_system(columns, [now + wall, rank, float(random.uniform(0, 100)), 2**30])
        now += wall
        collector.drain()
        for _ in range(4):
            collector.drain()  # a part at a time
    if closes:
        collector.close(wait_s=0)
    return collector


@contextmanager
def played(
    walls_ms: list[int], *, ranks: int = 2, seed: int = 1, closes: bool
) -> Iterator[Records]:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        collector = play(run, walls_ms, ranks=ranks, seed=seed, closes=closes)
        yield Records(run, 1)
        if not closes:
            kill(collector)


def sorted_rows(table: Any) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=repr)


@settings(max_examples=15)
@given(
    walls_ms=st.lists(st.integers(1, 4000), min_size=1, max_size=60),
    closes=st.booleans(),
    cuts=st.lists(st.tuples(st.floats(-0.1, 1.1), st.floats(0, 1)), min_size=1, max_size=4),
)
def test_the_rows_of_a_span_are_those_of_the_whole_table(walls_ms, closes, cuts):
    with played(walls_ms, closes=closes) as records:
        reader = SpanReader(records)
        for name in NAMES:
            whole = records.table(name)
            spans = row_spans_ns(whole, name)
            assert spans is not None
            assert reader.rows(name) == whole.num_rows
            assert reader.bounds_ns(name) == (spans[0].min(), spans[1].max())
            assert sorted_rows(reader.table(name, *EVER)) == sorted_rows(whole)
            length = spans[1].max()
            for begin, share in cuts:
                from_ns = int(begin * length)
                to_ns = from_ns + int(share * length)
                wanted = [each for each, first, last in zip(whole.to_pylist(), *spans, strict=True)
                          if last >= from_ns and first < to_ns]  # fmt: skip
                found = reader.table(name, from_ns, to_ns)
                assert sorted_rows(found) == sorted(wanted, key=repr)
        assert reader.count(*EVER) == sum(records.table(name).num_rows for name in NAMES[:3])


@settings(max_examples=10)
@given(walls_ms=st.lists(st.integers(1, 4000), min_size=40, max_size=90), closes=st.booleans())
def test_totals_and_the_rows_without_them_are_all_rows(walls_ms, closes):
    with played(walls_ms, closes=closes) as records:
        reader, whole = SpanReader(records), records.table("steps").to_pylist()
        rest = reader.table("steps", *EVER, without_totals=True).to_pylist()
        totals = reader.table("step_totals", *EVER).to_pylist()
        assert totals
        assert (not rest) if closes else len(rest) < len(whole)
        for rank in (0, 1):
            for kind in ("train", "eval"):
                check_sums(*(
                    [each for each in rows if (each["rank"], each["kind"]) == (rank, kind)]
                    for rows in (whole, rest, totals)
                ))  # fmt: skip


Rows = list[dict[str, Any]]


def check_sums(whole: Rows, rest: Rows, totals: Rows) -> None:
    """Check that rows of one kind and rank are either there or in a total, and none twice."""
    assert len(whole) == len(rest) + sum(each["steps"] for each in totals)
    for name in ("wall_ns", "samples", *(f"{phase}_ns" for phase in PHASES)):
        found = sum(each[name] for each in (*rest, *totals))
        assert found == sum(each[name] for each in whole)
    added = [each for each in whole if each not in rest]
    for most, name in (("longest_ns", "wall_ns"), ("longest_data_wait_ns", "data_wait_ns")):
        found = max((each[most] for each in totals), default=0)
        assert found == max((each[name] for each in added), default=0)
    shares = [each["data_wait_ns"] / each["wall_ns"] for each in added]
    found = max((each["data_wait_share"] for each in totals), default=0)
    assert found == pytest.approx(max(shares, default=0))


def span_of(records: Records, columns: int) -> tuple[CachedTables, ChartSpan, TimeAxis]:
    whole = CachedTables(records)
    axis = time_axis(whole)
    return whole, ChartSpan.of(axis, None, columns), axis


WALLS = [200] * 60 + [3000] + [200] * 140


@pytest.mark.parametrize("closes", [False, True])
def test_charts_of_totals_keep_every_stall_and_every_sum(closes: bool):
    with played(WALLS, closes=closes) as records:
        whole, span, axis = span_of(records, 20)
        reader = SpanReader(records)
        assert long_time_axis(reader) == axis
        added = CachedTables(SpanRows(reader, span.from_ns, span.to_ns, has_totals=True))
        exact, totals = heatmap_chart(whole, span), heatmap_chart(added, span)
        assert exact is not None
        assert totals is not None
        for band, other in zip(exact.bands, totals.bands, strict=True):
            assert (band.title, band.host, band.rows) == (other.title, other.host, other.rows)
            if band.title == "ranks":  # a period may reach into the next column, never lose one
                assert (other.values <= band.values).all()
                assert set(np.unique(other.values)) <= set(range(101)) | {UNKNOWN_PERCENT}
        steps = steps_chart(added, span)
        assert steps is not None
        assert [int(each.count.sum()) for each in steps.rows] == [len(WALLS)] * 2
        assert [float(each.wall_ms.max()) for each in steps.rows] == [3000.0] * 2
        check_lines(whole, added, span)


@pytest.mark.parametrize("closes", [False, True])
def test_a_span_of_a_long_run_knows_whose_batches_auxiliary_hosts_make(closes: bool):
    with played(WALLS, closes=closes) as records:
        _, span, axis = span_of(records, 20)
        middle_ns = (span.from_ns + axis.ended_ns) // 2
        rows = SpanRows(SpanReader(records), middle_ns, axis.ended_ns)
        events = SpanTables(CachedTables(rows), middle_ns, axis.ended_ns).table("events")
        (found,) = (row for row in events.to_pylist() if row["kind"] == LOADER_EVENT)
        assert found["at_ns"] == middle_ns


def test_charts_for_notebooks_say_of_which_host_a_row_is():
    with played([200] * 20, closes=True) as records:
        labels = {label for trace in open_run(records.path).heatmap().data for label in trace.y}
    for number in (0, 1):
        host = f"train · node-{number}"
        assert {f"{host} · rank {number}", f"{host} · core 0"} <= labels


def check_lines(whole: CachedTables, added: CachedTables, span: ChartSpan) -> None:
    seconds = (span.to_ns - span.from_ns) / 1e9
    draw: Callable[..., Any]
    for draw in (samples_chart, data_wait_chart):
        lines, of_totals = draw(whole, span), draw(added, span)
        assert lines is not None
        assert of_totals is not None
        exact, found = lines.series[0].y, of_totals.series[0].y
        assert np.nanmean(found) * seconds == pytest.approx(np.nanmean(exact) * seconds, rel=0.02)
    exact_ready, ready = ready_chart(whole, span), ready_chart(added, span)
    assert exact_ready is not None
    assert ready is not None
    assert np.nanmin(ready.series[1].y) == np.nanmin(exact_ready.series[1].y)
