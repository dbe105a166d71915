"""Dispatch of batch tasks to workers, and delivery in order. Pure: no processes, no clock.

Batches are issued in order as tasks. Any worker may take the oldest task that nobody took; a batch
whose worker died is issued again as a new task, and whichever task of a batch finishes first
counts. Batches are delivered in order, whatever the order they finish in.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTask:
    """One order to make one batch.

    Attributes:
        number: Counts tickets; later tickets have larger numbers.
        batch: Which batch to make, counted from the start of the iteration.
        slot: Where the batch goes.
    """

    number: int
    batch: int
    slot: int


class Dispatch:
    """The open tickets and the finished batches of one iteration."""

    def __init__(self) -> None:
        self._next_ticket = 0
        self._open: dict[int, BatchTask] = {}
        self._finished: dict[int, BatchTask] = {}
        self.next_delivery = 0

    def issue(self, batch: int, slot: int) -> BatchTask:
        """Return a new ticket for `batch`, to be made in `slot`."""
        ticket = BatchTask(number=self._next_ticket, batch=batch, slot=slot)
        self._next_ticket += 1
        self._open[ticket.number] = ticket
        return ticket

    def finish(self, number: int) -> BatchTask | None:
        """Note that ticket `number` is made.

        Returns:
            The ticket where its batch is not needed any more (another ticket for it finished
            first, or it was delivered), so that its slot can be freed; None where it counts.
        """
        ticket = self._open.pop(number)
        if not self.is_needed(ticket.batch):
            return ticket
        self._finished[ticket.batch] = ticket
        return None

    def batch_of(self, number: int) -> int | None:
        """Return the batch of an open ticket, None for another."""
        ticket = self._open.get(number)
        return None if ticket is None else ticket.batch

    def deliver(self) -> BatchTask | None:
        """Return the ticket of the next batch in order and step on, or None if not yet made."""
        ticket = self._finished.pop(self.next_delivery, None)
        if ticket is not None:
            self.next_delivery += 1
        return ticket

    def unseen(self, held: set[int], *, none_waiting: bool) -> set[int]:
        """Return the numbers of the tickets that no worker holds and that are not waiting either.

        Args:
            held: Numbers of the tickets that workers hold.
            none_waiting: No ticket waits to be taken any more.

        Such a ticket was taken by a worker that died before it could say so; or by a living one
        that is about to say so, and then the next look does not return it. Tickets are taken
        oldest first, so an older ticket than one that was taken is not waiting.
        """
        newest_taken = max(held, default=-1)
        return {
            number
            for number in self._open
            if number not in held and (none_waiting or number < newest_taken)
        }

    def forget(self, numbers: set[int]) -> list[BatchTask]:
        """Give up tickets whose worker is dead, of which some may be finished.

        Returns:
            Those that were open. Nobody writes to their slots any more.
        """
        return [self._open.pop(number) for number in sorted(numbers & self._open.keys())]

    @property
    def settled(self) -> bool:
        """Whether every ticket came to an end."""
        return not self._open and not self._finished

    @property
    def open_count(self) -> int:
        """How many tickets are neither finished nor given up."""
        return len(self._open)

    def is_needed(self, batch: int) -> bool:
        """Whether a batch is still to be made: no ticket for it has finished."""
        return batch >= self.next_delivery and batch not in self._finished

    def open_numbers(self) -> set[int]:
        """Return the numbers of the tickets that are neither finished nor given up."""
        return set(self._open)

    def tasks_for(self, batch: int) -> list[BatchTask]:
        """Return the open tickets for `batch`."""
        return [ticket for ticket in self._open.values() if ticket.batch == batch]
