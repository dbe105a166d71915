"""Rows of auxiliary workers on their way, and what their rank writes of hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.offload.proxy_records import ArrivalRows, OffloadRecorder, parse_rows
from headrace.records.layout import RINGS
from headrace.records.live_switch import create_live_switch
from headrace.records.ring import RingReader
from headrace.records.schema import ARRIVALS, BATCHES, EVENTS, STACKS


def body(number: int, width: int) -> bytes:
    return json.dumps({"now_ns": 5, "rows": [[number, [0] * width]]}).encode()


def test_rows_of_this_version_are_read():
    now_ns, rows = parse_rows(body(BATCHES.number, len(BATCHES.fields)))
    assert now_ns == 5
    assert rows == [[BATCHES.number, [0] * len(BATCHES.fields)]]


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"nonsense",
        body(BATCHES.number, len(BATCHES.fields) + 1),
        body(STACKS.number, len(STACKS.fields)),  # not sent
        body(999, 3),
    ],
)
def test_what_another_version_sends_is_refused(content: bytes):
    with pytest.raises(ValueError):  # noqa: PT011 - of JSON's, or ours
        parse_rows(content)


def test_what_comes_about_while_nothing_is_recorded_is_written_once_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / RINGS).mkdir()
    switch = create_live_switch(tmp_path, interval_s=1.0)
    monkeypatch.setenv("HEADRACE_RECORDS_DIR", str(tmp_path))
    monkeypatch.setenv("HEADRACE_LOADER", "3")
    accounts = OffloadRecorder(0)
    switch.on = False
    accounts.begun()
    accounts.note_cores("one", 4)
    accounts.note_cores("two", 2)
    accounts.note_cores("two", 0)
    accounts.catch_up()
    assert not list((tmp_path / RINGS).iterdir())
    switch.on = True
    accounts.catch_up()
    switch.on = False
    accounts.note_cores("one", 0)
    accounts.begun()
    switch.on = True
    accounts.catch_up()
    accounts.catch_up()
    (ring,) = (tmp_path / RINGS).iterdir()
    kind = EVENTS.columns.index("kind")
    rows = [values[kind:] for table, values in RingReader(ring).rows() if table is EVENTS]
    assert rows == [
        ("auxiliary-loader", "", 3.0), ("auxiliary-cores", "3/one", 4.0),
        ("auxiliary-cores", "3/one", 0.0),
    ]  # fmt: skip


def test_an_arrival_counts_once_the_rank_has_taken_it_in_and_not_made_it_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / RINGS).mkdir()
    create_live_switch(tmp_path, interval_s=1.0)
    monkeypatch.setenv("HEADRACE_RECORDS_DIR", str(tmp_path))
    monkeypatch.setenv("HEADRACE_LOADER", "3")
    arrivals = ArrivalRows(OffloadRecorder(0))

    def arrive(task: int | None, worker: int) -> None:
        arrivals.add(
            task, "one", worker, requested_s=1.0, began_s=2.0, queued_ns=1, making_ns=1,
            size_bytes=1,
        )  # fmt: skip

    arrive(None, 10)  # another host was faster
    for task, worker in ((4, 11), (5, 12)):
        arrive(task, worker)
    arrivals.add_unrecorded(6)  # given back
    for task, worker in ((7, 13), (8, 14)):
        arrive(task, worker)
    arrivals.discard(5)
    arrivals.confirm(1)
    arrivals.confirm(4)
    arrivals.reject_rest()
    arrive(4, 15)  # of another iteration
    arrivals.confirm(1)
    (ring,) = (tmp_path / RINGS).iterdir()
    worker, counted = ARRIVALS.columns.index("worker"), ARRIVALS.columns.index("counted")
    rows = [(values[worker], values[counted]) for _, values in RingReader(ring).rows()]
    assert rows == [(10, 0), (11, 1), (12, 0), (13, 1), (14, 0), (15, 1)]
