"""The scheduler of a rank's tasks over auxiliary hosts: which host makes which batch. No sockets.

Tasks come in order and are assigned in order, a few in a row to one host, so that what a host has
read for one batch helps with the next. A host that has taken much longer than usual over a batch is
not waited for: another is assigned it as well, and whichever comes first counts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_LATE_FACTOR = 2.0  # as long as nine of ten take there
_LATE_BEST_FACTOR = 4.0  # ... or as long as they take on the quickest host
_LATE_MORE_S = 0.1
_LATE_MIN_SAMPLES = 5  # durations known
_BACKOFF_FACTOR = 0.7  # of the orders at a time, after a batch that came too late
_SAMPLES = 64
_MAX_ASSIGNMENTS = 3  # at once for one ticket
_DUPLICATES_ONE_IN = 8  # of the asks under way
_RUNS_PER_HOST = 5  # a run is this part of what a host may have


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One host is asked for one ticket.

    Attributes:
        number: Counts asks.
        ticket: The ticket.
        host: The host.
        since_s: When.
        partition: Whose of an iterable dataset's strands it is.
    """

    number: int
    ticket: int
    host: str
    since_s: float
    partition: int = 0


@dataclass(slots=True)
class _Task:
    asks: set[int] = field(default_factory=set)
    arriving: int | None = None  # the ask whose batch is being received


@dataclass(slots=True)
class _HostLoad:
    orders: int  # that it may have
    out: set[int] = field(default_factory=set)
    took_s: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    limit: float = float("inf")  # of orders at a time, by whether they were in time

    @property
    def most(self) -> int:
        return int(min(self.orders, self.limit))

    @property
    def free(self) -> int:
        return self.most - len(self.out)

    @property
    def usual_s(self) -> float:
        """What nine of ten batches take at most; infinite while too few are known."""
        if len(self.took_s) < _LATE_MIN_SAMPLES:
            return float("inf")
        return sorted(self.took_s)[int(0.9 * (len(self.took_s) - 1))]

    def note(self, took_s: float, *, in_time: bool) -> None:
        self.took_s.append(took_s)
        self.limit = self.limit + 1 if in_time else max(1.0, self.most * _BACKOFF_FACTOR)


class BatchScheduler:
    """The tickets of one loader, and the hosts that may be asked for them."""

    def __init__(self) -> None:
        self._next_assignment = 0
        self._forgotten = 0  # asks before this one are of tickets that were forgotten
        self._waiting: deque[int] = deque()
        self._tickets: dict[int, _Task] = {}
        self._assignments: dict[int, Assignment] = {}
        self._hosts: dict[str, _HostLoad] = {}

    @property
    def room(self) -> int:
        """How many tickets it can have: what hosts take, and as many again to wait."""
        return 2 * sum(host.orders for host in self._hosts.values())

    def wanted_batches(self, host: str) -> int:
        """Return how many batches it would have a host make, if only that could."""
        known = self._hosts.get(host)
        return (len(known.out) if known else 0) + len(self._waiting)

    def add(self, ticket: int, partition: int = 0) -> None:  # noqa: ARG002 - see `PartitionScheduler`
        """Take a ticket."""
        self._tickets[ticket] = _Task()
        self._waiting.append(ticket)

    def set_task_limit(self, host: str, orders: int) -> None:
        """Note how many orders a host may have; it may be new."""
        known = self._hosts.setdefault(host, _HostLoad(orders))
        known.orders = orders

    def lose(self, host: str) -> None:
        """Ask a host no more; what it had is asked for elsewhere, before anything else."""
        known = self._hosts.pop(host, None)
        lost = sorted(known.out, reverse=True) if known else []
        for number in lost:
            ask = self._assignments.pop(number)
            ticket = self._task_of(ask)
            if ticket is None:
                continue
            if ticket.arriving == number:
                ticket.arriving = None
            self._end_without_batch(ask, ticket)

    def assign(self, now_s: float) -> list[Assignment]:
        """Return what to ask now, and of whom."""
        self._requeue_late_tasks(now_s)
        asks: list[Assignment] = []
        while self._waiting:
            ticket = self._waiting[0]
            host = self._choose(self._tickets[ticket])
            if host is None:
                return asks
            for _ in range(self._run(host)):
                asks.append(self._assign_to(self._waiting.popleft(), host, now_s))
                if not self._waiting or self._is_assigned_to(self._waiting[0], host):
                    break
        return asks

    def _run(self, host: str) -> int:
        known = self._hosts[host]
        return max(1, min(known.free, known.most // _RUNS_PER_HOST))

    def _is_assigned_to(self, ticket: int, host: str) -> bool:
        return any(self._assignments[each].host == host for each in self._tickets[ticket].asks)

    def _choose(self, ticket: _Task) -> str | None:
        """Return who is asked for a ticket: whoever has most room, and was not asked already."""
        asked = {self._assignments[each].host for each in ticket.asks}
        free = {name: host for name, host in self._hosts.items() if host.free > 0}
        if not asked:  # wait for room for a whole run, but never until a host idles
            free = {
                name: host
                for name, host in free.items()
                if host.free >= host.most // _RUNS_PER_HOST
            }
        return max(
            free,
            key=lambda name: (name not in asked, free[name].free / free[name].most, name),
            default=None,
        )

    def _assign_to(self, ticket: int, host: str, now_s: float) -> Assignment:
        ask = Assignment(number=self._next_assignment, ticket=ticket, host=host, since_s=now_s)
        self._next_assignment += 1
        self._assignments[ask.number] = ask
        self._tickets[ticket].asks.add(ask.number)
        self._hosts[host].out.add(ask.number)
        return ask

    def _requeue_late_tasks(self, now_s: float) -> None:
        again = sum(len(ticket.asks) > 1 for ticket in self._tickets.values())
        again += sum(bool(self._tickets[each].asks) for each in self._waiting)
        most = max(1, len(self._assignments) // _DUPLICATES_ONE_IN)
        for number, ticket in self._tickets.items():
            if again >= most:
                return
            if self._is_late(ticket, now_s) and number not in self._waiting:
                self._waiting.appendleft(number)
                again += 1

    def _is_late(self, ticket: _Task, now_s: float) -> bool:
        if not ticket.asks or ticket.arriving is not None or len(ticket.asks) >= _MAX_ASSIGNMENTS:
            return False
        asks = [self._assignments[each] for each in ticket.asks]
        best_s = min(host.usual_s for host in self._hosts.values())
        return all(now_s - ask.since_s > self._late_s(ask.host, best_s) for ask in asks)

    def _late_s(self, host: str, best_s: float) -> float:
        """Return how long a host may take over a batch before another is asked."""
        usual_s = self._hosts[host].usual_s
        return min(_LATE_FACTOR * usual_s, _LATE_BEST_FACTOR * best_s) + _LATE_MORE_S

    def begins(self, number: int, host: str) -> int | None:
        """Note that an ask's batch begins to arrive; return its ticket, None: nobody needs it."""
        ask = self._known(number, host)
        ticket = self._task_of(ask) if ask else None
        if ask is None or ticket is None or ticket.arriving is not None:
            return None
        ticket.arriving = number
        if ask.ticket in self._waiting:  # it was late
            self._waiting.remove(ask.ticket)
        return ask.ticket

    def requested_s(self, number: int, host: str) -> float | None:
        """Return when a host was asked, None where it was not."""
        ask = self._known(number, host)
        return ask.since_s if ask is not None else None

    def arrived(self, number: int, host: str, now_s: float) -> int | None:
        """Note that an ask's batch has arrived; return its ticket, where this one counts."""
        ask = self._known(number, host)
        if ask is None:
            return None
        del self._assignments[number]
        self._hosts[host].out.discard(number)
        ticket = self._task_of(ask)
        counts = ticket is not None and ticket.arriving == number
        was_in_time = counts or ask.number < self._forgotten
        self._hosts[host].note(now_s - ask.since_s, in_time=was_in_time)
        if ticket is None:
            return None
        if not counts:  # another's was arriving when it began, and may have been lost since
            self._end_without_batch(ask, ticket)
            return None
        self._drop(ask.ticket)
        return ask.ticket

    def returned(self, number: int, host: str) -> None:
        """Note that a host will not make an ask's batch: another is asked, where it is needed."""
        ask = self._known(number, host)
        if ask is None:
            return
        del self._assignments[number]
        self._hosts[host].out.discard(number)
        ticket = self._task_of(ask)
        if ticket is not None:
            self._end_without_batch(ask, ticket)

    def _end_without_batch(self, ask: Assignment, ticket: _Task) -> None:
        """End an ask that brings no batch: its ticket waits again, unless others are asked."""
        ticket.asks.discard(ask.number)
        if not ticket.asks and ask.ticket not in self._waiting:
            self._waiting.appendleft(ask.ticket)

    def _task_of(self, ask: Assignment) -> _Task | None:
        """Return an ask's ticket; None where that is done, or its number another's by now."""
        ticket = self._tickets.get(ask.ticket)
        return ticket if ticket is not None and ask.number in ticket.asks else None

    def _drop(self, number: int) -> None:
        del self._tickets[number]
        if number in self._waiting:
            self._waiting.remove(number)

    def _known(self, number: int, host: str) -> Assignment | None:
        ask = self._assignments.get(number)
        return ask if ask is not None and ask.host == host else None

    def give_back(self) -> list[int]:
        """Return the tickets that nobody can be asked for, and take them no longer."""
        if self._hosts:
            return []
        back = sorted(self._tickets)
        self._tickets.clear()
        self._waiting.clear()
        return back

    def again(self, host: str) -> tuple[int, float]:  # noqa: ARG002 - see `PartitionScheduler`
        """Return what another has to go through again for a host: nothing, batches are numbers."""
        return 0, 0.0

    def forget(self) -> None:
        """Take no tickets any longer; what is asked for is received, and thrown away."""
        self._tickets.clear()
        self._waiting.clear()
        self._forgotten = self._next_assignment
