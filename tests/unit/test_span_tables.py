"""Records cut to a span of time: as if recording had begun and ended with it."""

from __future__ import annotations

import pytest

from headrace.observe.whatif.offload_stats import (
    CORES_EVENT,
    LOADER_EVENT,
    cores_text,
    read_offload_stats,
)
from headrace.observe.whatif.tables import CachedTables
from headrace.report.span_tables import SpanTables
from headrace.report.top.run_watcher import TruncatedTables, closed_reader
from run_tables import MS, RunTables

SECOND = 1000 * MS
CORES = (
    (0, 2, "one", 4), (1, 2, "one", 4), (0, 3, "two", 2), (0, 5, "one", 6), (1, 7, "one", 1),
    (0, 8, "two", 0), (0, 9, "two", 3),
)  # fmt: skip
"""By rank, the second, the host, and how many of its cores a loader may use from then on."""


def helped() -> RunTables:
    """Two ranks whose batches auxiliary hosts make for twenty seconds."""
    tables = RunTables()
    for rank in (0, 1):
        tables.add("events", rank=rank, at_ns=SECOND, kind=LOADER_EVENT, value=0.0)
    tables.add("events", rank=0, at_ns=SECOND, kind=LOADER_EVENT, value=3.0)
    for rank, at_s, host, cores in CORES:
        its = {"rank": rank, "at_ns": at_s * SECOND, "text": cores_text(0, host)}
        tables.add("events", kind=CORES_EVENT, value=float(cores), **its)
    for at_s in range(1, 20):
        for rank, host in ((0, "one"), (0, "two"), (1, "one")):
            its = {"rank": rank, "host": host, "start_ns": at_s * SECOND + 100 * MS}
            tables.add("arrivals", wall_ns=10 * MS, making_ns=at_s * MS, **its)
    return tables


@pytest.mark.parametrize("loader", [0, 3, 5])
@pytest.mark.parametrize("span_s", [(0, 20), (4, 6), (5, 6), (6, 10), (8, 9), (9, 19), (15, 20)])
def test_a_span_knows_what_auxiliary_hosts_do_though_they_began_before(
    span_s: tuple[int, int], loader: int
):
    tables = helped()
    span = (span_s[0] * SECOND, span_s[1] * SECOND)
    whole = read_offload_stats(tables, loader, span)
    assert (whole is None) == (loader == 5)
    assert read_offload_stats(CachedTables(SpanTables(tables, *span)), loader, span) == whole
    if span_s[1] == 20:  # as of a run that goes on
        recent = CachedTables(TruncatedTables(closed_reader(tables), span[0]))
        assert read_offload_stats(recent, loader, span) == whole


def test_of_other_events_a_span_has_its_own():
    tables = helped()
    for kind in ("dropped-records", "switched"):
        for at_s in (3, 4, 5, 6):
            tables.add("events", rank=-1, at_ns=at_s * SECOND, kind=kind, text="off", value=1.0)
    rows = SpanTables(tables, 4 * SECOND, 6 * SECOND).table("events").to_pylist()
    found = [(row["kind"], row["at_ns"] // SECOND) for row in rows if row["rank"] < 0]
    assert found == [
        ("dropped-records", 4),
        ("dropped-records", 5),
        ("switched", 4),
        ("switched", 5),
    ]
    of_hosts = [(row["rank"], row["text"], row["value"]) for row in rows if row["rank"] >= 0]
    assert of_hosts == [
        (0, "", 0.0), (1, "", 0.0), (0, "", 3.0), (0, "0/one", 4.0), (1, "0/one", 4.0),
        (0, "0/two", 2.0), (0, "0/one", 6.0),
    ]  # fmt: skip
    assert SpanTables(RunTables(), 4 * SECOND, 6 * SECOND).table("events").num_rows == 0


def test_a_span_has_no_process_that_began_after_it():
    tables = RunTables()
    for pid, began_s in ((1, 1), (2, 5), (3, 6), (4, 9)):
        tables.add("processes", pid=pid, role="worker", worker=0, started_ns=began_s * SECOND)
    rows = SpanTables(tables, 4 * SECOND, 6 * SECOND).table("processes").to_pylist()
    assert [(row["pid"], row["started_ns"] // SECOND) for row in rows] == [(1, 4), (2, 5)]
