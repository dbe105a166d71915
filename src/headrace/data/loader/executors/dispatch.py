"""Dispatch of tasks to workers, and delivery in order. Pure: no processes, no clock.

Batches are issued in order as tasks. Any worker may take the oldest task that nobody took; a batch
whose worker died is issued again as a new task, and whichever task of a batch finishes first
counts. Batches are delivered in order, though they may finish in any order.
"""

from __future__ import annotations

from typing import NamedTuple


class BatchTask(NamedTuple):
    """A task to make one batch."""

    number: int  # larger than those of earlier tasks
    batch: int  # counted from the start of the iteration
    slot: int  # where the batch goes


class Dispatch:
    """The open tasks and the finished batches of one iteration."""

    def __init__(self) -> None:
        self._next_number = 0
        self._open: dict[int, BatchTask] = {}
        self._finished: dict[int, BatchTask] = {}
        self.next_delivery = 0

    def issue(self, batch: int, slot: int) -> BatchTask:
        """Return a new task to make `batch` in `slot`."""
        task = BatchTask(self._next_number, batch, slot)
        self._next_number += 1
        self._open[task.number] = task
        return task

    def finish(self, number: int) -> BatchTask | None:
        """Note that task `number` is done; return the task if its slot can be freed.

        That is so where its batch is not needed any more: another task for it finished first, or
        it was delivered. None where it counts.
        """
        task = self._open.pop(number)
        if not self.is_needed(task.batch):
            return task
        self._finished[task.batch] = task
        return None

    def batch_of(self, number: int) -> int | None:
        """Return the batch of an open task, or None."""
        task = self._open.get(number)
        return None if task is None else task.batch

    def deliver(self) -> BatchTask | None:
        """Return the finished task of the next batch in order and step on, or None."""
        task = self._finished.pop(self.next_delivery, None)
        if task is not None:
            self.next_delivery += 1
        return task

    def unseen(self, held: set[int], *, none_waiting: bool) -> set[int]:
        """Return the numbers of the tasks that are neither held by a worker nor waiting.

        Such a task was taken by a worker that died before it noted that in the status table; or by
        a living one that is about to, and then the next check does not return it. Tasks are taken
        oldest first, so an older task than one that was taken is not waiting.
        """
        newest_taken = max(held, default=-1)
        return {
            number
            for number in self._open
            if number not in held and (none_waiting or number < newest_taken)
        }

    def forget(self, numbers: set[int]) -> list[BatchTask]:
        """Drop tasks whose worker is dead; return the open ones, whose slots nobody writes to."""
        return [self._open.pop(number) for number in sorted(numbers & self._open.keys())]

    @property
    def settled(self) -> bool:
        """Whether no task is open and no finished batch undelivered."""
        return not self._open and not self._finished

    @property
    def open_count(self) -> int:
        """The number of open tasks."""
        return len(self._open)

    def is_needed(self, batch: int) -> bool:
        """Return whether a batch is still to be made: no task for it has finished."""
        return batch >= self.next_delivery and batch not in self._finished

    def open_numbers(self) -> set[int]:
        """Return the numbers of the open tasks."""
        return set(self._open)

    def tasks_for(self, batch: int) -> list[BatchTask]:
        """Return the open tasks for `batch`."""
        return [task for task in self._open.values() if task.batch == batch]
