"""Which auxiliary host goes through which strand of an iterable dataset. Pure bookkeeping.

A strand is what the dataset gives to one worker's number. It stays with one host, which makes its
batches in their order. A host that is lost loses its strands to others, each of which passes over
what was made before; where nobody is left, or a batch failed, a strand goes home: its tickets are
given back, now and later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.cluster.offload.dealing import Ask


def spread(
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
    for strand in strands if orders else ():
        host = min(given, key=lambda name: ((given[name] + 1) / orders[name], name))
        given[host] += 1
        places[strand] = host
    return places


@dataclass(slots=True)
class _Strand:
    host: str | None = None  # None: it is at home, or has no place yet
    is_home: bool = False
    waiting: deque[int] = field(default_factory=deque)  # tickets
    out: deque[int] = field(default_factory=deque)  # asks
    heard_s: float = 0.0  # when its newest batch came
    left: set[str] = field(default_factory=set)  # hosts that had it
    made: int = 0  # batches of it that have come
    cost_s: float = 0.0  # what going through these takes
    is_begun_anew: bool = False  # its host has first to pass over these


class StrandDealer:
    """The tickets of one loader whose dataset is iterated, and the hosts that may be asked."""

    def __init__(self) -> None:
        self._next_ask = 0
        self._asks: dict[int, Ask] = {}
        self._task_limits: dict[str, int] = {}
        self._strands: dict[int, _Strand] = {}
        self._back: list[int] = []
        self.is_spread = True

    def begin(self, strands: Sequence[int]) -> None:
        """Begin an iteration with these strands; they are spread over hosts by `spread_out`."""
        self.forget()
        self._strands = {number: _Strand() for number in strands}
        self.is_spread = False

    @property
    def room(self) -> int:
        """How many tickets it can have, about."""
        return 2 * sum(not strand.is_home for strand in self._strands.values())

    def wanted_of(self, host: str) -> int:
        """Return how many batches it would have a host make at a time."""
        return sum(
            strand.host == host and bool(strand.out or strand.waiting)
            for strand in self._strands.values()
        )

    def add(self, ticket: int, number: int) -> None:
        """Take a ticket for the next batch of a strand."""
        strand = self._strands.get(number)
        if strand is None or strand.is_home:
            self._back.append(ticket)
        else:
            strand.waiting.append(ticket)

    def set_orders(self, host: str, orders: int) -> None:
        """Note how many orders a host may have; it may be new."""
        self._task_limits[host] = orders

    def lose(self, host: str) -> None:
        """Ask a host no more; others go on with its strands."""
        self._task_limits.pop(host, None)
        for number, strand in self._strands.items():
            if strand.host == host:
                self._move(number, strand)

    def spread_out(self) -> int:
        """Give each strand a host; return how many find none and are made at home."""
        self.is_spread = True
        places = spread(list(self._strands), self._task_limits, {})
        for number, strand in self._strands.items():
            self._place(strand, places.get(number))
        return len(self._strands) - len(places)

    def deal(self, now_s: float) -> list[Ask]:
        """Return what to ask now, and of whom."""
        asks: list[Ask] = []
        for number, strand in self._strands.items():
            while strand.host is not None and strand.waiting:
                ask = Ask(
                    number=self._next_ask, ticket=strand.waiting.popleft(), host=strand.host,
                    since_s=now_s, strand=number,
                )  # fmt: skip
                self._next_ask += 1
                self._asks[ask.number] = ask
                strand.out.append(ask.number)
                asks.append(ask)
        return asks

    def needs(self, number: int | None, host: str) -> bool:
        """Whether an ask's batch is needed, or there is no such ask."""
        return number is None or self._known(number, host) is not None

    def begins(self, number: int, host: str) -> int | None:
        """Note that an ask's batch begins to arrive; return its ticket, None: nobody needs it."""
        ask = self._known(number, host)
        return None if ask is None else ask.ticket

    def asked_s(self, number: int, host: str) -> float | None:
        """Return when a host was asked, None where it was not, or the ask was let go."""
        ask = self._known(number, host)
        return ask.since_s if ask is not None else None

    def arrived(self, number: int, host: str, now_s: float) -> int | None:
        """Note that an ask's batch has arrived; return its ticket, where it is needed."""
        ask = self._known(number, host)
        if ask is None:
            return None
        del self._asks[number]
        strand = self._strands[ask.strand]
        strand.out.remove(number)
        strand.heard_s = now_s
        return ask.ticket

    def took(self, number: int, host: str, making_s: float) -> None:
        """Note how long a host was making an ask's batch."""
        ask = self._known(number, host)
        if ask is None:
            return
        strand = self._strands[ask.strand]
        strand.made += 1
        if strand.is_begun_anew:
            strand.is_begun_anew = False
            strand.cost_s = max(strand.cost_s, making_s)  # it has gone through all of it
        else:
            strand.cost_s += making_s

    def again(self, host: str) -> tuple[int, float]:
        """Return what another would have to go through again for a host: batches, and seconds.

        Of the seconds those of its longest strand: hosts go through several side by side.
        """
        its_own = [strand for strand in self._strands.values() if strand.host == host]
        costs_s = (strand.cost_s for strand in its_own)
        return sum(strand.made for strand in its_own), max(costs_s, default=0.0)

    def returned(self, number: int, host: str) -> None:
        """Note that a host will not make an ask's batch: it has lost its place in the strand."""
        ask = self._known(number, host)
        if ask is not None:
            self._move(ask.strand, self._strands[ask.strand])

    def failed(self, number: int, host: str) -> None:
        """Note that an ask's batch arrives as an error: home is where its strand is tried anew."""
        ask = self._known(number, host)
        if ask is not None:
            self._go_home(self._strands[ask.strand], without=number)

    def take_home(self, number: int) -> str | None:
        """Have a strand that is late go home, with those of its host that are no better.

        Returns:
            The host, None where it had none.
        """
        late = self._strands.get(number)
        if late is None or late.is_home:
            return None
        host = late.host
        since_s = min((self._asks[ask].since_s for ask in late.out), default=float("inf"))
        for strand in self._strands.values():
            began_s = min((self._asks[ask].since_s for ask in strand.out), default=float("inf"))
            if strand.host == host and began_s <= since_s and strand.heard_s <= since_s:
                self._go_home(strand)
        self._go_home(late)
        return host

    def give_back(self) -> list[int]:
        """Return the tickets that nobody can be asked for, and take them no longer."""
        back, self._back = self._back, []
        return back

    def forget(self) -> None:
        """Take no tickets any longer; what is asked for is received, and thrown away."""
        self._asks.clear()
        self._strands.clear()
        self._back.clear()
        self.is_spread = True

    def _move(self, number: int, strand: _Strand) -> None:
        """Have another host go on with a strand that its host has lost."""
        if strand.host is not None:
            strand.left.add(strand.host)
        strand.is_begun_anew = strand.made > 0
        self._take_back(strand)
        others = {name: most for name, most in self._task_limits.items() if name not in strand.left}
        has = {name: sum(one.host == name for one in self._strands.values()) for name in others}
        self._place(strand, spread([number], others, has).get(number))

    def _place(self, strand: _Strand, host: str | None) -> None:
        if host is None:
            self._go_home(strand)
        else:
            strand.host = host

    def _go_home(self, strand: _Strand, without: int | None = None) -> None:
        strand.is_home = True
        self._take_back(strand, without)
        self._back += strand.waiting
        strand.waiting.clear()

    def _take_back(self, strand: _Strand, without: int | None = None) -> None:
        """Let go of the asks of a strand, but for one; their tickets wait as they did."""
        kept = [number for number in strand.out if number == without]
        let_go = [self._asks.pop(number).ticket for number in strand.out if number != without]
        strand.out = deque(kept)
        strand.waiting.extendleft(reversed(let_go))
        strand.host = None

    def _known(self, number: int, host: str) -> Ask | None:
        ask = self._asks.get(number)
        return ask if ask is not None and ask.host == host else None
