"""Partitions of an iterable dataset, and their scheduler over auxiliary hosts. No sockets.

A partition is what the dataset gives to one worker's number. It stays with one host, which makes
its batches in their order. A host that is lost loses its partitions to others, each of which passes
over what was made before; where nobody is left, or a batch failed, a partition returns to the rank:
its tasks are given back, now and later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.offload.scheduler import Assignment


def assign_partitions(
    strands: Sequence[int], orders: Mapping[str, int], has: Mapping[str, int]
) -> dict[int, str]:
    """Return a host for each strand: each has as many as it takes orders, in proportion.

    Args:
        strands: What is given out, in this order.
        orders: How many orders each host takes; nothing is given out where there is none.
        has: How many strands each has already.
    """
    given = {host: has.get(host, 0) for host in orders}
    places: dict[int, str] = {}
    for partition in strands if orders else ():
        host = min(given, key=lambda name: ((given[name] + 1) / orders[name], name))
        given[host] += 1
        places[partition] = host
    return places


@dataclass(slots=True)
class _Partition:
    host: str | None = None  # None: it is at home, or has no place yet
    is_at_rank: bool = False
    waiting: deque[int] = field(default_factory=deque)  # tickets
    out: deque[int] = field(default_factory=deque)  # asks
    heard_s: float = 0.0  # when its newest batch came
    left: set[str] = field(default_factory=set)  # hosts that had it
    made: int = 0  # batches of it that have come
    cost_s: float = 0.0  # what going through these takes
    is_begun_anew: bool = False  # its host has first to pass over these


class PartitionScheduler:
    """The tickets of one loader whose dataset is iterated, and the hosts that may be asked."""

    def __init__(self) -> None:
        self._next_assignment = 0
        self._assignments: dict[int, Assignment] = {}
        self._task_limits: dict[str, int] = {}
        self._partitions: dict[int, _Partition] = {}
        self._back: list[int] = []
        self.is_assigned = True

    def begin(self, strands: Sequence[int]) -> None:
        """Begin an iteration with these strands; they are spread over hosts by `assign_all`."""
        self.forget()
        self._partitions = {number: _Partition() for number in strands}
        self.is_assigned = False

    @property
    def room(self) -> int:
        """How many tickets it can have, about."""
        return 2 * sum(not partition.is_at_rank for partition in self._partitions.values())

    def wanted_batches(self, host: str) -> int:
        """Return how many batches it would have a host make at a time."""
        return sum(
            partition.host == host and bool(partition.out or partition.waiting)
            for partition in self._partitions.values()
        )

    def add(self, ticket: int, number: int) -> None:
        """Take a ticket for the next batch of a strand."""
        partition = self._partitions.get(number)
        if partition is None or partition.is_at_rank:
            self._back.append(ticket)
        else:
            partition.waiting.append(ticket)

    def set_task_limit(self, host: str, orders: int) -> None:
        """Note how many orders a host may have; it may be new."""
        self._task_limits[host] = orders

    def lose(self, host: str) -> None:
        """Ask a host no more; others go on with its strands."""
        self._task_limits.pop(host, None)
        for number, partition in self._partitions.items():
            if partition.host == host:
                self._move(number, partition)

    def assign_all(self) -> int:
        """Give each strand a host; return how many find none and are made at home."""
        self.is_assigned = True
        places = assign_partitions(list(self._partitions), self._task_limits, {})
        for number, partition in self._partitions.items():
            self._place(partition, places.get(number))
        return len(self._partitions) - len(places)

    def assign(self, now_s: float) -> list[Assignment]:
        """Return what to ask now, and of whom."""
        asks: list[Assignment] = []
        for number, partition in self._partitions.items():
            while partition.host is not None and partition.waiting:
                ask = Assignment(
                    number=self._next_assignment,
                    ticket=partition.waiting.popleft(),
                    host=partition.host,
                    since_s=now_s,
                    partition=number,
                )
                self._next_assignment += 1
                self._assignments[ask.number] = ask
                partition.out.append(ask.number)
                asks.append(ask)
        return asks

    def needs(self, number: int | None, host: str) -> bool:
        """Whether an ask's batch is needed, or there is no such ask."""
        return number is None or self._known(number, host) is not None

    def begins(self, number: int, host: str) -> int | None:
        """Note that an ask's batch begins to arrive; return its ticket, None: nobody needs it."""
        ask = self._known(number, host)
        return None if ask is None else ask.ticket

    def requested_s(self, number: int, host: str) -> float | None:
        """Return when a host was asked, None where it was not, or the ask was let go."""
        ask = self._known(number, host)
        return ask.since_s if ask is not None else None

    def arrived(self, number: int, host: str, now_s: float) -> int | None:
        """Note that an ask's batch has arrived; return its ticket, where it is needed."""
        ask = self._known(number, host)
        if ask is None:
            return None
        del self._assignments[number]
        partition = self._partitions[ask.partition]
        partition.out.remove(number)
        partition.heard_s = now_s
        return ask.ticket

    def took(self, number: int, host: str, making_s: float) -> None:
        """Note how long a host was making an ask's batch."""
        ask = self._known(number, host)
        if ask is None:
            return
        partition = self._partitions[ask.partition]
        partition.made += 1
        if partition.is_begun_anew:
            partition.is_begun_anew = False
            partition.cost_s = max(partition.cost_s, making_s)  # it has gone through all of it
        else:
            partition.cost_s += making_s

    def again(self, host: str) -> tuple[int, float]:
        """Return what another would have to go through again for a host: batches, and seconds.

        Of the seconds those of its longest strand: hosts go through several side by side.
        """
        its_own = [partition for partition in self._partitions.values() if partition.host == host]
        costs_s = (partition.cost_s for partition in its_own)
        return sum(partition.made for partition in its_own), max(costs_s, default=0.0)

    def returned(self, number: int, host: str) -> None:
        """Note that a host will not make an ask's batch: it has lost its place in the strand."""
        ask = self._known(number, host)
        if ask is not None:
            self._move(ask.partition, self._partitions[ask.partition])

    def failed(self, number: int, host: str) -> None:
        """Note that an ask's batch arrives as an error: home is where its strand is tried anew."""
        ask = self._known(number, host)
        if ask is not None:
            self._return_to_rank(self._partitions[ask.partition], without=number)

    def reclaim_partition(self, number: int) -> str | None:
        """Have a strand that is late go home, with those of its host that are no better.

        Returns:
            The host, None where it had none.
        """
        late = self._partitions.get(number)
        if late is None or late.is_at_rank:
            return None
        host = late.host
        since_s = min((self._assignments[ask].since_s for ask in late.out), default=float("inf"))
        for partition in self._partitions.values():
            began_s = min(
                (self._assignments[ask].since_s for ask in partition.out), default=float("inf")
            )
            if partition.host == host and began_s <= since_s and partition.heard_s <= since_s:
                self._return_to_rank(partition)
        self._return_to_rank(late)
        return host

    def give_back(self) -> list[int]:
        """Return the tickets that nobody can be asked for, and take them no longer."""
        back, self._back = self._back, []
        return back

    def forget(self) -> None:
        """Take no tickets any longer; what is asked for is received, and thrown away."""
        self._assignments.clear()
        self._partitions.clear()
        self._back.clear()
        self.is_assigned = True

    def _move(self, number: int, partition: _Partition) -> None:
        """Have another host go on with a strand that its host has lost."""
        if partition.host is not None:
            partition.left.add(partition.host)
        partition.is_begun_anew = partition.made > 0
        self._take_back(partition)
        others = {
            name: most for name, most in self._task_limits.items() if name not in partition.left
        }
        has = {name: sum(one.host == name for one in self._partitions.values()) for name in others}
        self._place(partition, assign_partitions([number], others, has).get(number))

    def _place(self, partition: _Partition, host: str | None) -> None:
        if host is None:
            self._return_to_rank(partition)
        else:
            partition.host = host

    def _return_to_rank(self, partition: _Partition, without: int | None = None) -> None:
        partition.is_at_rank = True
        self._take_back(partition, without)
        self._back += partition.waiting
        partition.waiting.clear()

    def _take_back(self, partition: _Partition, without: int | None = None) -> None:
        """Let go of the asks of a strand, but for one; their tickets wait as they did."""
        kept = [number for number in partition.out if number == without]
        let_go = [
            self._assignments.pop(number).ticket for number in partition.out if number != without
        ]
        partition.out = deque(kept)
        partition.waiting.extendleft(reversed(let_go))
        partition.host = None

    def _known(self, number: int, host: str) -> Assignment | None:
        ask = self._assignments.get(number)
        return ask if ask is not None and ask.host == host else None
