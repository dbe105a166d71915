"""Whatever auxiliary hosts do, each ticket is answered once, and each slot has one writer."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.offload.scheduler import Assignment, BatchScheduler

HOSTS = ["a", "b", "c"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "up", "down", "deal", "begin", "end", "return", "wait", "forget"]),
        st.integers(0, 7),
    ),
    max_size=150,
)


class Hosts:
    """Hosts that do as they are told, and who listens to them."""

    def __init__(self) -> None:
        self.dealer = BatchScheduler()
        self.now_s = 0.0
        self.orders: dict[str, int] = {}
        self.out: list[Assignment] = []
        self.begun: dict[int, int | None] = {}  # ask -> ticket whose slot it writes to
        self.added = 0
        self.answered: list[int] = []

    def act(self, what: str, number: int) -> None:
        host = HOSTS[number % len(HOSTS)]
        if what == "add":
            self.dealer.add(self.added)
            self.added += 1
        elif what == "up":
            self.orders[host] = number + 1
            self.dealer.set_task_limit(host, number + 1)
        elif what == "down":
            self.orders.pop(host, None)
            self.dealer.lose(host)
            gone = {ask.number for ask in self.out if ask.host == host}
            self.out = [ask for ask in self.out if ask.number not in gone]
            self.begun = {ask: to for ask, to in self.begun.items() if ask not in gone}
        elif what == "deal":
            self.assign()
        elif what == "wait":
            self.now_s += number
        elif what == "forget" and number == 0:
            self.dealer.forget()
            self.begun = dict.fromkeys(self.begun)  # what arrives goes nowhere
            self.added, self.answered = 0, []
        elif self.out:
            self.answer(what, self.out[number % len(self.out)])
        self.answered += self.dealer.give_back()

    def assign(self) -> None:
        self.out += self.dealer.assign(self.now_s)
        for host, orders in self.orders.items():
            had = sum(ask.host == host for ask in self.out)
            assert had <= max(orders, 8)  # it may have had more orders before
        assert all(ask.host in self.orders for ask in self.out)

    def answer(self, what: str, ask: Assignment) -> None:
        if what == "begin" and ask.number not in self.begun:
            self.begun[ask.number] = self.dealer.begins(ask.number, ask.host)
            writing = [ticket for ticket in self.begun.values() if ticket is not None]
            assert len(writing) == len(set(writing)), "two write to one slot"
        elif what == "end" and ask.number in self.begun:
            self.out.remove(ask)
            ticket = self.dealer.arrived(ask.number, ask.host, self.now_s)
            assert ticket == self.begun.pop(ask.number), "another iteration's"
            if ticket is not None:
                self.answered.append(ticket)
        elif what == "return" and ask.number not in self.begun:
            self.out.remove(ask)
            self.dealer.returned(ask.number, ask.host)

    def finish(self) -> None:
        """Let one host make all that is left."""
        self.act("up", 0)
        for _ in range(4 * self.added + len(self.out) + 1):
            self.assign()
            for ask in list(self.out):
                self.answer("begin", ask)
                self.answer("end", ask)


@given(steps=STEPS)
def test_each_ticket_is_answered_once(steps: list[tuple[str, int]]):
    hosts = Hosts()
    for what, number in steps:
        hosts.act(what, number)
    hosts.finish()
    assert sorted(hosts.answered) == list(range(hosts.added))


def test_consecutive_tickets_go_to_one_host():
    dealer = BatchScheduler()
    for host in ("a", "b"):
        dealer.set_task_limit(host, 10)
    for ticket in range(20):
        dealer.add(ticket)
    hosts = [ask.host for ask in dealer.assign(0.0)]
    changes = sum(one != other for one, other in pairwise(hosts))
    assert len(hosts) == 20
    assert changes < 10


def test_a_host_that_takes_much_longer_than_usual_is_not_waited_for():
    dealer = BatchScheduler()
    dealer.set_task_limit("a", 4)
    for ticket in range(12):
        dealer.add(ticket)
    now_s, out = 0.0, dealer.assign(0.0)
    stuck = out.pop(0)
    made: list[int | None] = []
    while out:
        now_s += 1.0
        for ask in out:
            dealer.begins(ask.number, "a")
            made.append(dealer.arrived(ask.number, "a", now_s))
        out = dealer.assign(now_s)
    assert sorted(made, key=str) == sorted(range(12), key=str), "the stuck one's ticket as well"
    assert dealer.begins(stuck.number, "a") is None, "what comes late goes nowhere"
    assert dealer.arrived(stuck.number, "a", now_s) is None


def test_a_host_as_slow_as_ever_is_not_late():
    dealer = BatchScheduler()
    dealer.set_task_limit("a", 2)
    for ticket in range(40):
        dealer.add(ticket)
    now_s, out, asked = 0.0, dealer.assign(0.0), 2
    for _ in range(19):
        now_s += 10.0
        for ask in out:
            assert dealer.begins(ask.number, "a") is not None
            dealer.arrived(ask.number, "a", now_s)
        out = dealer.assign(now_s)
        asked += len(out)
    assert asked == 40, "nothing was asked for twice"


def test_a_host_that_was_late_again_and_again_is_asked_again():
    dealer = BatchScheduler()
    for host in ("a", "b"):
        dealer.set_task_limit(host, 10)
    added, out = 0, []
    made_later = {"a": 0, "b": 0}
    for second in range(120):
        while added < 20 * (second + 2):
            dealer.add(added)
            added += 1
        out += dealer.assign(float(second))
        b_stalls = second in range(10, 40)
        for ask in [ask for ask in out if not (ask.host == "b" and b_stalls)]:
            out.remove(ask)
            dealer.begins(ask.number, ask.host)
            counts = dealer.arrived(ask.number, ask.host, second + 1.0) is not None
            made_later[ask.host] += counts and second >= 90
    assert made_later["b"] > 0.4 * made_later["a"], "it is as quick as the other by then"


def test_what_came_in_vain_is_asked_for_again_where_the_other_is_lost():
    dealer = BatchScheduler()
    for host in ("a", "b"):
        dealer.set_task_limit(host, 1)
    dealer.add(0)
    (first,) = dealer.assign(0.0)
    for _ in range(6):  # so that it is known what is late
        dealer._hosts["a"].note(0.1, in_time=True)
        dealer._hosts["b"].note(0.1, in_time=True)
    (again,) = dealer.assign(100.0)
    assert {first.host, again.host} == {"a", "b"}
    assert dealer.begins(first.number, first.host) == 0
    assert dealer.begins(again.number, again.host) is None
    dealer.lose(first.host)
    assert dealer.arrived(again.number, again.host, 101.0) is None
    assert [ask.task for ask in dealer.assign(102.0)] == [0]
