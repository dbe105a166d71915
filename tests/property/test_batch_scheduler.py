"""Whatever auxiliary hosts do, each task is answered once, and each slot has one writer."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.offload.scheduler import Assignment, BatchScheduler

HOSTS = ["a", "b", "c"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "up", "down", "assign", "begin", "end", "return", "wait", "forget"]
        ),
        st.integers(0, 7),
    ),
    max_size=150,
)


class Hosts:
    """Hosts that do as a test's steps say, and their scheduler."""

    def __init__(self) -> None:
        self.scheduler = BatchScheduler()
        self.now_s = 0.0
        self.limits: dict[str, int] = {}
        self.out: list[Assignment] = []
        self.begun: dict[int, int | None] = {}  # assignment -> task whose slot it writes to
        self.added = 0
        self.answered: list[int] = []

    def act(self, what: str, number: int) -> None:
        host = HOSTS[number % len(HOSTS)]
        if what == "add":
            self.scheduler.add(self.added)
            self.added += 1
        elif what == "up":
            self.limits[host] = number + 1
            self.scheduler.set_task_limit(host, number + 1)
        elif what == "down":
            self.limits.pop(host, None)
            self.scheduler.lose(host)
            gone = {assignment.number for assignment in self.out if assignment.host == host}
            self.out = [assignment for assignment in self.out if assignment.number not in gone]
            self.begun = {
                assignment: to for assignment, to in self.begun.items() if assignment not in gone
            }
        elif what == "assign":
            self.assign()
        elif what == "wait":
            self.now_s += number
        elif what == "forget" and number == 0:
            self.scheduler.forget()
            self.begun = dict.fromkeys(self.begun)  # what arrives goes nowhere
            self.added, self.answered = 0, []
        elif self.out:
            self.answer(what, self.out[number % len(self.out)])
        self.answered += self.scheduler.give_back()

    def assign(self) -> None:
        self.out += self.scheduler.assign(self.now_s)
        for host, limit in self.limits.items():
            had = sum(assignment.host == host for assignment in self.out)
            assert had <= max(limit, 8)  # it may have had a higher limit before
        assert all(assignment.host in self.limits for assignment in self.out)

    def answer(self, what: str, assignment: Assignment) -> None:
        if what == "begin" and assignment.number not in self.begun:
            self.begun[assignment.number] = self.scheduler.begins(
                assignment.number, assignment.host
            )
            writing = [task for task in self.begun.values() if task is not None]
            assert len(writing) == len(set(writing)), "two write to one slot"
        elif what == "end" and assignment.number in self.begun:
            self.out.remove(assignment)
            task = self.scheduler.arrived(assignment.number, assignment.host, self.now_s)
            assert task == self.begun.pop(assignment.number), "another iteration's"
            if task is not None:
                self.answered.append(task)
        elif what == "return" and assignment.number not in self.begun:
            self.out.remove(assignment)
            self.scheduler.returned(assignment.number, assignment.host)

    def finish(self) -> None:
        """Let one host make all that is left."""
        self.act("up", 0)
        for _ in range(4 * self.added + len(self.out) + 1):
            self.assign()
            for assignment in list(self.out):
                self.answer("begin", assignment)
                self.answer("end", assignment)


@given(steps=STEPS)
def test_each_task_is_answered_once(steps: list[tuple[str, int]]):
    hosts = Hosts()
    for what, number in steps:
        hosts.act(what, number)
    hosts.finish()
    assert sorted(hosts.answered) == list(range(hosts.added))


def test_consecutive_tasks_go_to_one_host():
    scheduler = BatchScheduler()
    for host in ("a", "b"):
        scheduler.set_task_limit(host, 10)
    for task in range(20):
        scheduler.add(task)
    hosts = [assignment.host for assignment in scheduler.assign(0.0)]
    changes = sum(one != other for one, other in pairwise(hosts))
    assert len(hosts) == 20
    assert changes < 10


def test_a_host_that_takes_much_longer_than_usual_is_not_waited_for():
    scheduler = BatchScheduler()
    scheduler.set_task_limit("a", 4)
    for task in range(12):
        scheduler.add(task)
    now_s, out = 0.0, scheduler.assign(0.0)
    stuck = out.pop(0)
    made: list[int | None] = []
    while out:
        now_s += 1.0
        for assignment in out:
            scheduler.begins(assignment.number, "a")
            made.append(scheduler.arrived(assignment.number, "a", now_s))
        out = scheduler.assign(now_s)
    assert sorted(made, key=str) == sorted(range(12), key=str), "the stuck one's task as well"
    assert scheduler.begins(stuck.number, "a") is None, "what comes late goes nowhere"
    assert scheduler.arrived(stuck.number, "a", now_s) is None


def test_a_host_as_slow_as_ever_is_not_late():
    scheduler = BatchScheduler()
    scheduler.set_task_limit("a", 2)
    for task in range(40):
        scheduler.add(task)
    now_s, out, assigned = 0.0, scheduler.assign(0.0), 2
    for _ in range(19):
        now_s += 10.0
        for assignment in out:
            assert scheduler.begins(assignment.number, "a") is not None
            scheduler.arrived(assignment.number, "a", now_s)
        out = scheduler.assign(now_s)
        assigned += len(out)
    assert assigned == 40, "nothing was asked for twice"


def test_a_host_that_was_late_again_and_again_is_asked_again():
    scheduler = BatchScheduler()
    for host in ("a", "b"):
        scheduler.set_task_limit(host, 10)
    added, out = 0, []
    made_later = {"a": 0, "b": 0}
    for second in range(120):
        while added < 20 * (second + 2):
            scheduler.add(added)
            added += 1
        out += scheduler.assign(float(second))
        b_stalls = second in range(10, 40)
        for assignment in [
            assignment for assignment in out if not (assignment.host == "b" and b_stalls)
        ]:
            out.remove(assignment)
            scheduler.begins(assignment.number, assignment.host)
            counts = scheduler.arrived(assignment.number, assignment.host, second + 1.0) is not None
            made_later[assignment.host] += counts and second >= 90
    assert made_later["b"] > 0.4 * made_later["a"], "it is as quick as the other by then"


def test_what_came_in_vain_is_asked_for_again_where_the_other_is_lost():
    scheduler = BatchScheduler()
    for host in ("a", "b"):
        scheduler.set_task_limit(host, 1)
    scheduler.add(0)
    (first,) = scheduler.assign(0.0)
    for _ in range(6):  # so that it is known what is late
        scheduler._hosts["a"].note(0.1, in_time=True)
        scheduler._hosts["b"].note(0.1, in_time=True)
    (again,) = scheduler.assign(100.0)
    assert {first.host, again.host} == {"a", "b"}
    assert scheduler.begins(first.number, first.host) == 0
    assert scheduler.begins(again.number, again.host) is None
    scheduler.lose(first.host)
    assert scheduler.arrived(again.number, again.host, 101.0) is None
    assert [assignment.task for assignment in scheduler.assign(102.0)] == [0]
