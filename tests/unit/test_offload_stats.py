"""What auxiliary hosts did, read from records made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest

from headrace.observe.whatif.comparison import TimeSlice
from headrace.observe.whatif.measured_pipeline import MeasuredPipeline, loader_rows
from headrace.observe.whatif.offload_stats import (
    CORES_EVENT,
    LOADER_EVENT,
    OffloadStats,
    cores_text,
    offload_span_ns,
    read_offload_stats,
)
from headrace.observe.whatif.prediction import PipelineChange, Simulator, with_auxiliary
from headrace.observe.whatif.simulation import Pipeline
from headrace.observe.whatif.tables import columns
from headrace.records.schema import TABLES_BY_NAME

SECOND = 1_000_000_000


@dataclass
class Written:
    """Tables with a few columns filled in, the others 0 or empty."""

    rows: dict[str, list[dict[str, object]]] = field(default_factory=dict)

    def table(self, name: str) -> pa.Table:
        fields = TABLES_BY_NAME[name].fields
        types = {"int": pa.int64(), "float": pa.float64(), "text": pa.string()}
        empty = {"int": 0, "float": 0.0, "text": ""}
        rows = self.rows.get(name, [])
        return pa.table(
            {
                each.name: pa.array(
                    [row.get(each.name, empty[each.kind]) for row in rows], types[each.kind]
                )
                for each in fields
            }
        )


def cores(rank: int, at_s: float, host: str, value: float, loader: int = 0) -> dict[str, object]:
    text, at_ns = cores_text(loader, host), int(at_s * SECOND)
    return {"rank": rank, "at_ns": at_ns, "kind": CORES_EVENT, "text": text, "value": value}


def arrival(rank: int, at_s: float, making_ms: int, loader: int = 0) -> dict[str, object]:
    return {
        "rank": rank, "loader": loader, "host": "one", "start_ns": int(at_s * SECOND),
        "wall_ns": SECOND // 10, "making_ns": making_ms * 1_000_000,
    }  # fmt: skip


TAKEN: dict[str, object] = {"kind": LOADER_EVENT, "value": 0.0}
SPAN = (10 * SECOND, 20 * SECOND)


def test_a_loader_that_may_not_be_offloaded_has_no_auxiliary_workers():
    tables = Written({"arrivals": [arrival(0, 12, 40)], "events": [cores(0, 11, "one", 4)]})
    assert read_offload_stats(tables, 0, SPAN) is None


def test_before_a_host_is_there_it_has_no_auxiliary_workers():
    stats = read_offload_stats(Written({"events": [TAKEN]}), 0, SPAN)
    assert stats is not None
    assert (stats.workers, stats.making_ns) == (0, 0.0)


def test_cores_are_averaged_over_time_and_shared_by_ranks():
    changes = [
        TAKEN,
        cores(0, 5, "one", 4), cores(1, 5, "one", 4),  # all the time
        cores(0, 15, "two", 8), cores(1, 15, "two", 8),  # half of it
        cores(0, 16, "one", 1, loader=1),  # another loader's
        cores(0, 10, "three", 6), cores(0, 15, "three", 0), cores(1, 20, "three", 6),
    ]  # fmt: skip
    arrivals = [arrival(0, 12, 40), arrival(1, 13, 60), arrival(0, 30, 999), arrival(0, 12, 1, 7)]
    stats = read_offload_stats(Written({"events": changes, "arrivals": arrivals}), 0, SPAN)
    assert stats is not None
    assert stats.workers == round((4 + 4 + 4 + 4 + 3) / 2)
    assert stats.making_ns == pytest.approx(50e6), "of this loader, in this time"


def test_when_hosts_joined():
    changes = [cores(0, 5, "one", 2), cores(0, 9, "one", 3), cores(0, 7, "two", 1)]
    events = columns(Written({"events": [TAKEN, *changes]}), "events")
    assert offload_span_ns(events, 0) == (5 * SECOND, 7 * SECOND)
    assert offload_span_ns(columns(Written({"events": [TAKEN]}), "events"), 0) is None
    assert offload_span_ns(events, 1) is None


def test_within_a_time_only_what_began_and_ended_there_counts():
    steps = [{"start_ns": at * SECOND, "wall_ns": SECOND} for at in range(10)]
    tables = Written({"steps": steps, "events": [cores(0, 1, "one", 1)]})

    def begins(part: TimeSlice) -> list[int]:
        return [at // SECOND for at in part.table("steps")["start_ns"].to_pylist()]

    assert begins(TimeSlice(tables, end_ns=4 * SECOND)) == [0, 1, 2, 3]
    assert begins(TimeSlice(tables, begin_ns=7 * SECOND)) == [7, 8, 9]
    assert begins(TimeSlice(tables)) == list(range(10))
    assert TimeSlice(tables, begin_ns=5 * SECOND).table("events").num_rows == 1


def test_with_help_a_loader_without_workers_has_one():
    loaders = columns(Written({"loaders": [{"loader": 0, "workers": 0}]}), "loaders")
    alone, helped = loader_rows(loaders, 0), loader_rows(loaders, 0, OffloadStats())
    assert alone is not None
    assert helped is not None
    assert (alone["workers"][0], helped["workers"][0]) == (0, 1)
    assert helped["prefetch_factor"][0] == 2


def simulator(auxiliary: int, factor: float) -> Simulator:
    """Workers that take 100 ms a batch, 2 here and some on servers; the consumer takes 1 ms."""
    workers = 2 + auxiliary / factor
    return Simulator(
        MeasuredPipeline(
            pipeline=Pipeline(workers=2, takes_next=True, auxiliary=auxiliary),
            service_ns=np.full(50, 100e6),
            service_cpu_ns=np.full(50, 50e6),
            demand_ns=np.full(50, 50e6),
            consume_ns=np.full(50, 1e6),
            consume_cpu_ns=1e6,
            period_ns=np.full(50, 100e6 / workers),
            ranks=1,
            persistent=True,
            auxiliary_factor=factor,
        )
    )


def test_hosts_that_helped_are_predicted_as_quick_as_they_were():
    slow = simulator(8, 2.0)  # 8 that do the work of 4
    same = with_auxiliary(slow, 8)
    assert same.low <= 1.0 <= same.high
    assert same.speedup == pytest.approx(1.0, abs=0.05)
    assert with_auxiliary(slow, 16).speedup == pytest.approx(10 / 6, rel=0.06)


def test_ranks_that_share_a_core_get_no_more_than_their_part_of_it():
    local = simulator(0, 1.0)  # 2 workers
    for cores in (0.25, 0.5, 1.0, 1.5, 2.0, 2.5):
        speedup = with_auxiliary(local, cores).speedup
        assert speedup == pytest.approx(1.0 + cores / 2, rel=0.08), cores


def test_what_quickens_a_batch_here_quickens_it_there():
    for factor in (0.5, 2.0):
        quick = simulator(4, factor).predict(PipelineChange(service_factor=0.5))
        assert quick.speedup == pytest.approx(2.0, rel=0.05)
