"""The device's clock has a row for each of the host's, or counts it, whenever events pass."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from headrace.observe.probe import device_clock
from headrace.observe.probe.device_clock import DeviceClock, Report
from headrace.observe.probe.segments import RowKind, Segment
from headrace.observe.probe.steps import StepClock

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


class Queue:
    """A device that takes a while for what is put into its queue, and passes events in order."""

    def __init__(self) -> None:
        self.records = 0
        self.passed = 0
        self.work_ns = 0  # when all that was put into it until now is done
        self.events = 0

    def put(self, ns: int) -> None:
        """Put work of so many nanoseconds into the queue, which an event will follow."""
        self.work_ns += ns

    def new_event(self) -> Event:
        self.events += 1
        return Event(self)


class Event:
    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.place = self.at_ns = 0

    def record(self) -> None:
        self.queue.records += 1
        self.place = self.queue.records
        self.at_ns = self.queue.work_ns

    def query(self) -> bool:
        return self.place <= self.queue.passed

    def elapsed_time(self, end: Event) -> float:
        assert self.query()
        assert end.query()
        return (end.at_ns - self.at_ns) / 1e6


Row = tuple[RowKind, int, Segment]


def host_rows(reports: list[Report], at_ns: list[int]) -> list[Row]:
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
    queue = Queue()
    clock = DeviceClock(lambda *row: rows.append(row), queue.new_event)
    for report, ns in zip(reports, work_ns, strict=True):
        queue.put(ns)
        clock.report(report)
        queue.passed = data.draw(st.integers(queue.passed, queue.records))
        clock.poll()
    queue.passed = queue.records
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
def test_rows_that_no_event_tells_are_counted_and_the_others_are_right(steps: list[str], most: int):
    rows: list[Row] = []
    queue = Queue()
    clock = DeviceClock(lambda *row: rows.append(row), queue.new_event)
    device_clock.MOST_WAITING, before = most, device_clock.MOST_WAITING
    try:
        for step in ["in time", *steps, "in time"]:
            for report in EPOCH:
                queue.put(10)
                clock.report(report, timed=step != "no event")
                if step != "late":
                    queue.passed = queue.records
            clock.poll()
        clock.give_up()
    finally:
        device_clock.MOST_WAITING = before
    numbers = [number for _, number, _ in rows]
    assert numbers == sorted(set(numbers))
    finished = len(steps) + 1  # the last step goes on
    assert len(rows) + clock.lost == finished
    assert all(row.wall_ns == 80 for _, _, row in rows)
    if set(steps) == {"in time"}:
        assert clock.lost == 0
    assert queue.events <= most + 2


def test_a_device_that_is_not_in_use_costs_no_events_and_loses_nothing():
    queue = Queue()
    clock = DeviceClock(lambda *_: None, queue.new_event)
    for _ in range(5):
        for report in EPOCH:
            clock.report(report, timed=False)
    assert (queue.events, clock.lost) == (0, 0)
