"""What auxiliary hosts did, read from records made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from headrace.observe.whatif.away import CORES_EVENT, LOADER_EVENT, joined_ns, read_away
from headrace.observe.whatif.tables import columns
from headrace.observe.whatif.within import Within
from headrace.records.schema import BY_NAME

SECOND = 1_000_000_000


@dataclass
class Written:
    """Tables with a few columns filled in, the others 0 or empty."""

    rows: dict[str, list[dict[str, object]]] = field(default_factory=dict)

    def table(self, name: str) -> pa.Table:
        fields = BY_NAME[name].fields
        types = {"int": pa.int64(), "float": pa.float64(), "text": pa.string()}
        empty = {"int": 0, "float": 0.0, "text": ""}
        told = self.rows.get(name, [])
        return pa.table(
            {
                each.name: pa.array(
                    [row.get(each.name, empty[each.kind]) for row in told], types[each.kind]
                )
                for each in fields
            }
        )


def cores(rank: int, at_s: float, host: str, value: float) -> dict[str, object]:
    at_ns = int(at_s * SECOND)
    return {"rank": rank, "at_ns": at_ns, "kind": CORES_EVENT, "text": host, "value": value}


def arrival(rank: int, at_s: float, making_ms: int, loader: int = 0) -> dict[str, object]:
    return {
        "rank": rank, "loader": loader, "host": "one", "start_ns": int(at_s * SECOND),
        "wall_ns": SECOND // 10, "making_ns": making_ms * 1_000_000,
    }  # fmt: skip


TAKEN: dict[str, object] = {"kind": LOADER_EVENT, "value": 0.0}
SPAN = (10 * SECOND, 20 * SECOND)


def test_a_loader_that_nobody_may_help_has_no_workers_away():
    tables = Written({"arrivals": [arrival(0, 12, 40)], "events": [cores(0, 11, "one", 4)]})
    assert read_away(tables, 0, SPAN) is None


def test_before_a_host_is_there_nobody_works_away():
    away = read_away(Written({"events": [TAKEN]}), 0, SPAN)
    assert away is not None
    assert (away.workers, away.making_ns) == (0, 0.0)


def test_cores_are_averaged_over_time_and_shared_by_ranks():
    told = [
        TAKEN,
        cores(0, 5, "one", 4), cores(1, 5, "one", 4),  # all the time
        cores(0, 15, "two", 8), cores(1, 15, "two", 8),  # half of it
        cores(0, 10, "three", 6), cores(0, 15, "three", 0), cores(1, 20, "three", 6),
    ]  # fmt: skip
    arrivals = [arrival(0, 12, 40), arrival(1, 13, 60), arrival(0, 30, 999), arrival(0, 12, 1, 7)]
    away = read_away(Written({"events": told, "arrivals": arrivals}), 0, SPAN)
    assert away is not None
    assert away.workers == round((4 + 4 + 4 + 4 + 3) / 2)
    assert away.making_ns == pytest.approx(50e6), "of this loader, in this time"


def test_when_hosts_joined():
    told = [cores(0, 5, "one", 2), cores(0, 9, "one", 3), cores(0, 7, "two", 1)]
    events = columns(Written({"events": [TAKEN, *told]}), "events")
    assert joined_ns(events) == (5 * SECOND, 7 * SECOND)
    assert joined_ns(columns(Written({"events": [TAKEN]}), "events")) is None


def test_within_a_time_only_what_began_and_ended_there_counts():
    steps = [{"start_ns": at * SECOND, "wall_ns": SECOND} for at in range(10)]
    tables = Written({"steps": steps, "events": [cores(0, 1, "one", 1)]})

    def begins(part: Within) -> list[int]:
        return [at // SECOND for at in part.table("steps")["start_ns"].to_pylist()]

    assert begins(Within(tables, end_ns=4 * SECOND)) == [0, 1, 2, 3]
    assert begins(Within(tables, begin_ns=7 * SECOND)) == [7, 8, 9]
    assert begins(Within(tables)) == list(range(10))
    assert Within(tables, begin_ns=5 * SECOND).table("events").num_rows == 1
