"""The device's clock has a row for each of the host's, or counts it, whenever events pass."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from threading import Lock

from hypothesis import given
from hypothesis import strategies as st

from headrace.observe.probe import device_clock
from headrace.observe.probe.device_clock import CopySums, DeviceClock, HostReport
from headrace.observe.probe.step_clock import CopyPlace, StepClock
from headrace.observe.probe.step_segments import NO_COPIES, RowKind, Segment
from simulated_device import Device, Stream

EPOCH: list[Callable[[StepClock, int], None]] = [
    lambda clock, at: clock.fetch_began(0, at, grad=True),
    lambda clock, at: clock.fetch_ended(at, 4, ended=False),
    lambda clock, at: clock.within_began("copy", at),
    lambda clock, at: clock.within_ended(at),
    lambda clock, at: clock.backward_began(at),
    lambda clock, at: clock.backward_ended(at),
    lambda clock, at: clock.optimizer_began(7, at),
    lambda clock, at: clock.optimizer_ended(7, at),
]


Row = tuple[RowKind, int, Segment]


def settle(clock: DeviceClock) -> None:
    clock.poll()
    clock.timed.settle()


def host_rows(reports: list[HostReport], at_ns: list[int]) -> list[Row]:
    rows: list[Row] = []
    clock = StepClock(lambda *row: rows.append(row))
    for report, now_ns in zip(reports, at_ns, strict=True):
        report(clock, now_ns)
    return rows


@given(st.lists(st.integers(0, 10**9), min_size=8, max_size=200), st.data())
def test_rows_are_those_of_the_host_s_clock_with_the_device_s_times(
    work_ns: list[int], data: st.DataObject
):
    reports = [EPOCH[place % len(EPOCH)] for place in range(len(work_ns))]
    rows: list[Row] = []
    device = Device()
    clock = DeviceClock(lambda *row: rows.append(row), device.event, Lock)
    for report, ns in zip(reports, work_ns, strict=True):
        device.done_ns += ns
        clock.report(report)
        device.now_ns = data.draw(st.integers(device.now_ns, device.done_ns))
        clock.poll()
    device.now_ns = device.done_ns
    settle(clock)
    starts = [1]
    for ns in work_ns[1:]:
        starts.append(starts[-1] + ns)
    assert rows == host_rows(reports, starts)
    assert clock.lost == 0


@given(
    st.lists(st.sampled_from(["in time", "no event", "late"]), min_size=1, max_size=25),
    st.integers(8, 40),
)
def test_rows_that_no_event_reports_are_counted_and_the_others_are_right(
    steps: list[str], most: int
):
    rows: list[Row] = []
    device = Device()
    clock = DeviceClock(lambda *row: rows.append(row), device.event, Lock)
    device_clock.MAX_PENDING_EVENTS, before = most, device_clock.MAX_PENDING_EVENTS
    try:
        for step in ["in time", *steps, "in time"]:
            for report in EPOCH:
                device.done_ns += 10
                clock.report(report, timed=step != "no event")
                if step != "late":
                    device.now_ns = device.done_ns
            clock.poll()
        clock.give_up()
        clock.timed.settle()
    finally:
        device_clock.MAX_PENDING_EVENTS = before
    numbers = [number for _, number, _ in rows]
    assert numbers == sorted(set(numbers))
    finished = len(steps) + 1  # the last step goes on
    assert len(rows) + clock.lost == finished
    assert all(row.wall_ns == 80 for _, _, row in rows)
    if set(steps) == {"in time"}:
        assert clock.lost == 0
    assert device.events <= most + 2


def test_a_device_that_is_not_in_use_costs_no_events_and_loses_nothing():
    device = Device()
    clock = DeviceClock(lambda *_: None, device.event, Lock)
    for _ in range(5):
        for report in EPOCH:
            clock.report(report, timed=False)
    settle(clock)
    assert (device.events, clock.lost) == (0, 0)


@given(st.lists(st.integers(0, 100), min_size=4, max_size=30), st.data())
def test_what_lies_in_another_stream_costs_the_stream_of_the_steps_nothing(
    copies_ns: list[int], data: st.DataObject
):
    rows: list[Row] = []
    device, side = Device(), Stream()
    clock = DeviceClock(lambda *row: rows.append(row), device.event, Lock)
    for copied_ns in copies_ns:
        for report in EPOCH:
            side.done_ns = max(side.done_ns, device.now_ns) + copied_ns
            device.done_ns += 10
            clock.report(report, stream=device)
            device.now_ns = data.draw(st.integers(device.now_ns, device.done_ns))
    device.now_ns = device.done_ns
    settle(clock)
    assert [row.wall_ns for _, _, row in rows] == [80] * (len(copies_ns) - 1)
    assert all(row.phases_ns["copy"] == 10 for _, _, row in rows)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50)), min_size=9, max_size=80))
def test_time_goes_on_where_the_steps_move_to_a_stream_that_is_ahead(
    moves: list[tuple[bool, int]],
):
    rows: list[Row] = []
    device, other = Device(), Stream()
    clock = DeviceClock(lambda *row: rows.append(row), device.event, Lock)
    ends_ns = []
    for place, (moved, work_ns) in enumerate(moves):
        stream = other if moved else device
        stream.done_ns += work_ns
        ends_ns.append(stream.done_ns)
        clock.report(EPOCH[place % len(EPOCH)], stream=stream)
    device.now_ns = max(ends_ns)
    settle(clock)
    latest = list(itertools.accumulate(ends_ns, max))
    starts = [latest[at] - latest[0] + 1 for at in range(0, len(moves), len(EPOCH))]
    assert [row.start_ns for _, _, row in rows] == starts[:-1]
    assert [row.wall_ns for _, _, row in rows] == [b - a for a, b in itertools.pairwise(starts)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 10**6)), max_size=60))
def test_copies_take_what_the_device_does_by_their_lines_whatever_the_script_waits_for(
    copies: list[tuple[str, int]],
):
    taken: dict[CopyPlace, int] = {}
    rows: list[Row] = []
    device = Device()

    def add(place: CopyPlace, spent_ns: int) -> None:
        taken[place] = taken.get(place, 0) + spent_ns

    clock = DeviceClock(lambda *row: rows.append(row), device.event, Lock, add)
    for file, copied_ns in copies:
        for report in EPOCH[:2]:
            clock.report(report)
        device.done_ns += 5_000  # earlier work, for which the script waits in the copy
        clock.report(EPOCH[2])
        device.done_ns += copied_ns
        device.now_ns = device.done_ns
        clock.report(StepClock.within_ended, NO_COPIES, (file, 7))
        settle(clock)
    assert taken == {
        (file, 7): sum(ns for other, ns in copies if other == file) for file, _ in copies
    }


@given(st.lists(st.integers(0, 10**10), max_size=300))
def test_sums_of_copies_lose_nothing_and_are_written_ever_more_seldom(pauses_ns: list[int]):
    written: list[tuple[CopyPlace, int, int]] = []
    copies = CopySums(lambda *row: written.append(row))
    now_ns = 1
    for pause_ns in pauses_ns:
        now_ns += pause_ns
        copies.add(("train.py", 7), 3)
        copies.write(now_ns)
    copies.write()
    assert sum(count for _, count, _ in written) == len(pauses_ns)
    assert sum(spent_ns for *_, spent_ns in written) == 3 * len(pauses_ns)
    assert len(written) <= 11 + math.log(max(now_ns / 1e10, 1)) / math.log(1.1) + 1
