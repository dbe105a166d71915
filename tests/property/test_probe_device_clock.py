"""The device's clock has a row for each of the host's, or counts it, whenever events pass."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from headrace.observe.probe import device_clock
from headrace.observe.probe.device_clock import DeviceClock, HostReport
from headrace.observe.probe.step_clock import RowKind, Segment, StepClock
from simulated_device import Device

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
    clock = DeviceClock(lambda *row: rows.append(row), device.event)
    for report, ns in zip(reports, work_ns, strict=True):
        device.done_ns += ns
        clock.report(report)
        device.now_ns = data.draw(st.integers(device.now_ns, device.done_ns))
        clock.poll()
    device.now_ns = device.done_ns
    clock.poll()
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
    clock = DeviceClock(lambda *row: rows.append(row), device.event)
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
    clock = DeviceClock(lambda *_: None, device.event)
    for _ in range(5):
        for report in EPOCH:
            clock.report(report, timed=False)
    assert (device.events, clock.lost) == (0, 0)
