"""Partitions of iterable datasets: their batches come once and in order, on any host."""

from __future__ import annotations

import pickle
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import LoaderError
from headrace.data.loader.batch_builder import (
    BatchBuilder,
    BatchSpec,
    IterableExhausted,
    LoaderSpec,
)
from headrace.data.loader.workers.shared_memory import PlainArena
from headrace.offload.scheduler import Assignment, PartitionScheduler, assign_partitions

HOSTS = ["a", "b", "c"]
PARTITIONS = range(2, 7)
WAYS = ["add", "up", "down", "spread", "assign", "end", "fail", "return", "reclaim", "begin"]
STEPS = st.lists(st.tuples(st.sampled_from(WAYS), st.integers(0, 9)), max_size=150)


class Hosts:
    """Hosts that do as a test's steps say, and their scheduler."""

    def __init__(self) -> None:
        self.scheduler = PartitionScheduler()
        self.now_s = 0.0
        self.up: set[str] = set()
        self.out: list[Assignment] = []
        self.begin()

    def begin(self) -> None:
        self.scheduler.begin(PARTITIONS)
        self.added: dict[int, int] = {}  # task -> its partition
        self.made: list[int] = []
        self.back: list[int] = []

    def act(self, what: str, number: int) -> None:
        host, self.now_s = HOSTS[number % len(HOSTS)], self.now_s + 1
        match what:
            case "add":
                partition = PARTITIONS[number % len(PARTITIONS)]
                self.scheduler.add(len(self.added), partition)
                self.added[len(self.added)] = partition
            case "up":
                self.up.add(host)
                self.scheduler.set_task_limit(host, number + 1)
            case "down":
                self.up.discard(host)
                self.scheduler.lose(host)
                self.out = [assignment for assignment in self.out if assignment.host != host]
            case "spread":
                self.scheduler.assign_all()
            case "assign":
                self.assign()
            case "reclaim":
                self.scheduler.reclaim_partition(PARTITIONS[number % len(PARTITIONS)])
            case "begin" if number == 0:
                self.begin()  # what is out arrives, and goes nowhere
            case "end" | "fail" | "return" if self.out:
                self.answer(what, self.out[number % len(self.out)].host)
        self.back += self.scheduler.give_back()

    def assign(self) -> None:
        for assignment in self.scheduler.assign(self.now_s):
            assert assignment.host in self.up
            assert assignment.partition == self.added[assignment.task]
            needed = [one for one in self.out if self.scheduler.needs(one.number, one.host)]
            assert all(
                one.host == assignment.host
                for one in needed
                if one.partition == assignment.partition
            )
            self.out.append(assignment)

    def answer(self, what: str, host: str) -> None:
        """Have a host answer the oldest assignment that it has."""
        assignment = next(one for one in self.out if one.host == host)
        self.out.remove(assignment)
        if what == "return":
            self.scheduler.returned(assignment.number, host)
            return
        begun = self.scheduler.begins(assignment.number, host)
        if what == "fail":
            self.scheduler.failed(assignment.number, host)
        task = self.scheduler.arrived(assignment.number, host, self.now_s)
        assert task == begun
        if task is not None:
            (self.made if what == "end" else self.back).append(task)


@given(STEPS)
def test_each_task_is_answered_once_and_in_the_order_of_its_partition(steps):
    hosts = Hosts()
    for what, number in steps:
        hosts.act(what, number)
    hosts.scheduler.assign_all()
    for what in ("assign", *["end"] * len(hosts.added), "assign"):
        hosts.act(what, 0)
    while hosts.out:
        hosts.act("end", 0)
    assert sorted(hosts.made + hosts.back) == sorted(hosts.added)
    for partition in PARTITIONS:
        made = [task for task in hosts.made if hosts.added[task] == partition]
        back = [task for task in hosts.back if hosts.added[task] == partition]
        assert made == sorted(made)
        assert not made or not back or made[-1] < min(back), (
            "nothing is made after it was reclaimed"
        )


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 40)), st.integers(0, 50), st.data())
def test_each_host_has_partitions_in_proportion_to_its_task_limit(limits, count, data):
    has = {host: data.draw(st.integers(0, 3)) for host in limits}
    places = assign_partitions(range(count), limits, has)
    assert set(places) == set(range(count) if limits else ())
    given = {host: has[host] + list(places.values()).count(host) for host in limits}
    for one in set(places.values()):
        for other in limits:
            assert given[one] / limits[one] <= (given[other] + 1) / limits[other]


class Drawing:
    """Draws for each sample; raises at some of them, and goes on."""

    def __init__(self, count: int, bad: set[int]) -> None:
        self.count, self.bad = count, bad

    def __iter__(self) -> Drawing:
        self.at = -1
        return self

    def __next__(self) -> tuple[int, float]:
        self.at += 1
        drawn = random.random()
        if self.at >= self.count:
            raise StopIteration
        if self.at in self.bad:
            raise ValueError(f"sample {self.at}")
        return self.at, drawn


def collated(samples: Any) -> tuple[Any, float]:
    return samples, random.random()


def made(maker: BatchBuilder, place: int) -> object:
    try:
        return pickle.loads(maker.make(BatchSpec(draws=0, epoch=0, place=place), PlainArena()))
    except (IterableExhausted, LoaderError, ValueError) as error:
        return repr(error)


@given(
    st.integers(0, 40),
    st.sets(st.integers(0, 40), max_size=4),
    st.sampled_from([None, 1, 3, 7]),
    st.booleans(),
    st.lists(st.integers(0, 15), min_size=1, unique=True).map(sorted),
)
def test_whoever_passes_over_batches_makes_the_next_as_they_come(count, bad, size, drop, places):
    spec = LoaderSpec(
        dataset=Drawing(count, bad), collate_fn=collated, iterable=True, batch_size=size,
        drop_last=drop and size is not None, switches={},
    )  # fmt: skip
    random.seed(7)
    maker = BatchBuilder(spec, lambda _: None)
    whole = [made(maker, place) for place in range(16)]
    random.seed(7)
    late = BatchBuilder(spec, lambda _: None)
    begin, is_astray = 0, False
    for place in places:
        came = made(late, place)
        failed = next((one for one in whole[begin:place] if isinstance(one, str)), None)
        if is_astray or failed == repr(IterableExhausted()):
            assert str(came).startswith("LoaderError("), "it is no end that anybody could believe"
        else:
            assert came == (failed or whole[place])
        begin, is_astray = place + 1, is_astray or failed is not None
