"""What a rank notes, and when rows become of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from headrace.observe.probe.event_log import EventLog
from headrace.observe.probe.report_queue import MAX_QUEUED_REPORTS, LockFactory
from headrace.observe.probe.step_clock import StepClock
from headrace.observe.probe.step_segments import Segment

WAIT, FORWARD, BACKWARD, OPTIMIZER, REST = 10, 20, 30, 5, 1


class Rank:
    """A rank whose steps take what they are said to take."""

    def __init__(self, new_lock: LockFactory = threading.Lock) -> None:
        self.rows: list[tuple[str, int, Segment]] = []
        self.faults: list[str] = []
        self.log = EventLog(
            lambda *row: self.rows.append(row),
            lambda _where, error: self.faults.append(str(error)),
            new_lock,
        )
        self.now_ns = 1000

    def notes(self, report: Callable[[StepClock, int], None], then_ns: int) -> None:
        self.log.waiting.append((report, self.now_ns))
        self.now_ns += then_ns

    def step(self) -> None:
        self.notes(lambda clock, at_ns: clock.fetch_began(0, at_ns, grad=True), WAIT)
        self.notes(lambda clock, at_ns: clock.fetch_ended(at_ns, 4, ended=False), FORWARD)
        self.notes(StepClock.backward_began, BACKWARD)
        self.notes(StepClock.backward_ended, 0)
        self.notes(lambda clock, at_ns: clock.optimizer_began(1, at_ns), OPTIMIZER)
        self.notes(lambda clock, at_ns: clock.optimizer_ended(1, at_ns), REST)


PHASES = {
    "data_wait": WAIT, "forward": FORWARD, "backward": BACKWARD, "optimizer": OPTIMIZER,
    "other": REST,
}  # fmt: skip
LAST = [{name: ns for name, ns in PHASES.items() if name != "other"}, {"other": REST}]
"""The last step, and what follows it until the rank's end."""


def phases(row: tuple[str, int, Segment]) -> dict[str, int]:
    return {phase: ns for phase, ns in row[2].phases_ns.items() if ns}


def test_what_is_noted_becomes_rows_when_it_is_settled():
    rank = Rank()
    rank.step()
    rank.step()
    assert rank.rows == []
    rank.log.settle()
    assert [phases(row) for row in rank.rows] == [PHASES]  # the second has not ended
    rank.log.close(rank.now_ns, recording=True)
    assert [phases(row) for row in rank.rows] == [PHASES, *LAST]
    assert rank.log.steps_ended == 2


def test_a_phase_is_that_of_the_moment_in_which_it_was_asked_for():
    rank, phases_seen = Rank(), []
    rank.log.request_phase(phases_seen.append)
    rank.notes(lambda clock, at_ns: clock.fetch_began(0, at_ns, grad=True), WAIT)
    rank.log.request_phase(phases_seen.append)
    rank.notes(lambda clock, at_ns: clock.fetch_ended(at_ns, 4, ended=False), FORWARD)
    rank.log.request_phase(phases_seen.append)
    rank.notes(StepClock.backward_began, BACKWARD)
    assert phases_seen == []
    rank.log.settle()
    assert phases_seen == ["other", "data_wait", "forward"]


def test_a_report_that_fails_takes_no_other_with_it():
    rank = Rank()
    rank.step()
    rank.notes(lambda clock, _: clock.forget(0), 0)
    rank.step()
    rank.log.close(rank.now_ns, recording=True)
    assert [phases(row) for row in rank.rows] == [PHASES, *LAST]
    (fault,) = rank.faults
    assert "forget" in fault


def test_where_much_is_noted_it_does_not_pile_up():
    rank = Rank()
    for _ in range(1000):
        rank.step()
        rank.log.limit_backlog()
    assert len(rank.log.waiting) <= MAX_QUEUED_REPORTS
    assert len(rank.rows) >= 1000 - MAX_QUEUED_REPORTS // 6 - 1
    rank.log.settle()
    assert [phases(row) for row in rank.rows] == [PHASES] * 999


def test_keeping_up_while_another_thread_has_settled_all_is_nothing():
    class Late:
        """A lock that is had once another thread has done it all."""

        def acquire(self, *, timeout: float) -> bool:
            rank.log.waiting.clear()
            return timeout >= 0

        def release(self) -> None:
            pass

    rank = Rank(Late)
    while len(rank.log.waiting) <= MAX_QUEUED_REPORTS:
        rank.step()
    rank.log.limit_backlog()
    assert not rank.log.waiting


def test_what_happened_lately_is_dropped_where_recording_was_off():
    rank = Rank()
    rank.step()
    rank.step()
    rank.log.close(rank.now_ns, recording=False)
    assert [phases(row) for row in rank.rows] == [PHASES]


def test_threads_that_settle_at_once_change_nothing():
    rank, goes_on = Rank(), threading.Event()

    def settle() -> None:
        while not goes_on.is_set():
            rank.log.settle()
            rank.log.settle_now()

    others = [threading.Thread(target=settle) for _ in range(3)]
    for other in others:
        other.start()
    for _ in range(2000):
        rank.step()
        rank.log.limit_backlog()
    goes_on.set()
    for other in others:
        other.join()
    rank.log.close(rank.now_ns, recording=True)
    assert [phases(row) for row in rank.rows] == [*[PHASES] * 1999, *LAST]
    assert [number for _, number, _ in rank.rows] == [*range(2000), 0]


def test_a_forked_child_begins_anew_also_where_a_thread_of_its_parent_was_at_it():
    rank, is_at_it, goes_on = Rank(), threading.Event(), threading.Event()
    rank.step()
    rank.notes(lambda _clock, _: (is_at_it.set(), goes_on.wait()), 0)
    other = threading.Thread(target=rank.log.settle)
    other.start()
    is_at_it.wait()
    child = os.fork()
    if not child:
        rank.log.forked()
        rank.step()
        rank.log.close(rank.now_ns, recording=True)
        os._exit([phases(row) for row in rank.rows] == LAST)
    goes_on.set()
    other.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
