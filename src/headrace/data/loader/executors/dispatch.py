"""Which task goes where, and delivery in order: tasks of workers here and of remote ones.

Batches are issued in order as tasks. Any worker may take the oldest task that nobody took; a batch
whose worker died is issued again as a new task, and whichever task of a batch finishes first
counts. Batches are delivered in order, though they may finish in any order. A batch that is slow on
one side is made on the other as well.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from headrace.core.errors import LoaderError
from headrace.data.loader.batch_builder import PickledLoaderSpec
from headrace.data.loader.executors.base import RemoteWorkers
from headrace.data.loader.failures import BatchFailure
from headrace.data.loader.memory_budget import LargestBatch
from headrace.data.loader.workers.messages import Answer, AnswerMessage, TaskMessage


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


_NEWER = 0.2  # weight of the newest duration
_UNKNOWN_S = 5.0  # before any batch was timed
_LONG_S = 10.0  # no partition of an iterable dataset is late sooner,
_LONG_FIRST_S = 90.0  # ... or with its first batch: hosts load and open the dataset
_LOCAL_FACTOR, _REMOTE_FACTOR = 4.0, 2.0


class BatchDuration:
    """The usual duration of a batch, a moving average."""

    def __init__(self) -> None:
        self.usual_s: float | None = None  # before the first batch

    def note(self, took_s: float) -> None:
        """Note one batch's duration."""
        before_s = took_s if self.usual_s is None else self.usual_s
        self.usual_s = before_s + _NEWER * (took_s - before_s)


class LocalDuration(BatchDuration):
    """The usual duration of a batch on a worker here."""

    def __init__(self) -> None:
        super().__init__()
        # Task -> when it was sent, and how many batches its worker makes until it is made.
        self.sent: dict[int, tuple[float, float]] = {}

    def note_sent(self, number: int, rounds: float) -> None:
        """Note that a task was sent, as the last of some batches of a worker."""
        self.sent[number] = time.monotonic(), rounds

    def note_done(self, number: int) -> None:
        """Note that a task is done."""
        since_s, rounds = self.sent.pop(number, (None, 1.0))
        if since_s is not None:
            self.note((time.monotonic() - since_s) / rounds)


def is_partition_overdue(
    waited_s: float, held_up_s: float, places: int, local: BatchDuration, remote: BatchDuration
) -> bool:
    """Return whether a remote partition of an iterable dataset should move here.

    A worker here has to iterate it again from the start. Waiting as long as that takes before doing
    so costs at most twice the best choice. A partition that is slow again and again moves, too.

    The script waited `waited_s` for its current batch alone, `held_up_s` for all its batches alone;
    `places` of them were made before. Remote durations are from when a batch is sent.
    """
    one_s = next((pace.usual_s for pace in (local, remote) if pace.usual_s is not None), 0.0)
    long_s = (_LONG_S if places else _LONG_FIRST_S) + _LOCAL_FACTOR * one_s
    return waited_s > long_s + places * one_s or held_up_s > long_s + _LOCAL_FACTOR * places * one_s


_AHEAD = 2
"""Batches made ahead of a late one, for each open one: other workers continue meanwhile."""


class RemoteTasks:
    """The tasks that remote workers have, where there are any."""

    def __init__(self, remote_workers: RemoteWorkers | None) -> None:
        self._remote_workers = remote_workers
        self._room = 0
        # Each batch that came too late halves the number of tasks that remote workers get; each in
        # time adds one.
        self._limit = float("inf")
        self._largest = LargestBatch()
        self._failures: dict[int, tuple[BatchFailure, int]] = {}  # batch -> failure, worker
        self.pace = BatchDuration()  # from when a task is sent
        self._start_arguments: tuple[PickledLoaderSpec, range] | None = None
        self.numbers: dict[int, float] = {}  # of their tasks, and when each was sent

    def slots_for(self, depth: int) -> int:
        """Return the most batches that may be in flight; `depth` without remote workers."""
        if self._remote_workers is None:
            return depth
        return _AHEAD * (depth + self._remote_workers.max_open_tasks)

    def max_in_flight(self, depth: int) -> int:
        """Return how many batches may be in flight or prefetched now."""
        if self._remote_workers is None or not self._room:
            return depth
        # Before a size is known remote workers get one batch, however little memory is free.
        least = depth if self._largest.is_known else depth + 1
        return max(least, min(_AHEAD * (depth + self._room), self.most_fitting))

    @property
    def most_fitting(self) -> int:
        """Return how many batches fit into the memory for prefetched batches."""
        if self._remote_workers is None:
            return 0
        return self._largest.fitting(self._remote_workers.most_bytes)

    @property
    def has_room(self) -> bool:
        """Whether remote workers can take a task."""
        return len(self.numbers) < min(self._room, self._limit)

    @property
    def workers(self) -> int:
        """About how many remote workers there are: they have room for twice as many tasks."""
        return self._room // 2

    @property
    def has_idle_workers(self) -> bool:
        """Whether some remote workers are idle."""
        return self.has_room and len(self.numbers) < self.workers

    def send(self, task: TaskMessage, partition: int) -> None:
        """Send a task; `partition` matters for an iterable dataset."""
        assert self._remote_workers is not None  # there is no room otherwise
        self.numbers[task.number] = time.monotonic()
        try:
            self._remote_workers.send(task, partition)
        except LoaderError:  # they have ended: `lost` reports it
            self._room = 0

    def reclaim_partition(self, partition: int) -> None:
        """Have remote workers return what they have of a partition of an iterable dataset."""
        if self._remote_workers is not None:
            self._remote_workers.reclaim_partition(partition)

    def start(self, loader_spec: PickledLoaderSpec, partitions: range) -> None:
        """Have remote workers make batches of a loader; see `RemoteWorkers`."""
        self._start_arguments = loader_spec, partitions
        self.resume_after_restart()

    def resume_after_restart(self) -> None:
        """Start remote workers, which have dropped all tasks, with the same loader spec again."""
        self._failures.clear()
        self._limit = float("inf")
        if self._remote_workers is not None and self._start_arguments is not None:
            if not self._remote_workers.lives:
                self._room = 0
            self._remote_workers.start(*self._start_arguments)

    def finish(self) -> None:
        """Drop the loader spec, which may be large: the iteration is over."""
        self._start_arguments = None
        if self._remote_workers is not None:
            self._remote_workers.finish()

    def forget(self) -> None:
        """Have remote workers drop all tasks."""
        self.numbers.clear()
        if self._remote_workers is not None and not self._remote_workers.forget():
            self._room = 0

    def lost(self) -> set[int]:
        """Return the tasks of remote workers that have ended, and forget them."""
        if self._remote_workers is None or not self.numbers or self._remote_workers.lives:
            return set()
        self._room = 0
        lost = set(self.numbers)
        self.numbers.clear()
        return lost

    def is_slow(self, number: int, local: LocalDuration, *, has_idle_local: bool) -> bool:
        """Return whether the side that does not have a task should make its batch, too."""
        if number in self.numbers:
            return has_idle_local and self._prefers_local(number, local)
        return self._prefers_remote(number, local)

    def _prefers_local(self, number: int, local: BatchDuration) -> bool:
        remote_for_s = time.monotonic() - self.numbers[number]
        if local.usual_s is None:
            return remote_for_s > _UNKNOWN_S
        if self.pace.usual_s is None:
            return remote_for_s > _LOCAL_FACTOR * local.usual_s + 1.0
        still_s = self.pace.usual_s - remote_for_s
        is_long_over = remote_for_s > _REMOTE_FACTOR * self.pace.usual_s + local.usual_s
        return still_s > local.usual_s or is_long_over

    def _prefers_remote(self, number: int, local: LocalDuration) -> bool:
        if not self.has_room or local.usual_s is None or self.pace.usual_s is None:
            return False
        since_s, rounds = local.sent[number]
        local_for_s, expected_s = time.monotonic() - since_s, rounds * local.usual_s
        is_long_over = local_for_s > _LOCAL_FACTOR * expected_s + self.pace.usual_s
        return is_long_over or expected_s - local_for_s > _REMOTE_FACTOR * self.pace.usual_s

    def note(self, answer: AnswerMessage) -> bool:
        """Note an answer; return whether it came from remote workers."""
        if answer.answer is Answer.ROOM:
            self._room = answer.number
            return True
        if answer.answer is Answer.MADE:
            self._largest.note(answer.offset + answer.size_bytes)
        since_s = self.numbers.pop(answer.number, None)
        if since_s is None or self._remote_workers is None:
            return False
        self._remote_workers.note_answer()
        if answer.answer is Answer.MADE:
            self.pace.note(time.monotonic() - since_s)
        return True

    def note_in_time(self, number: int, *, was_needed: bool) -> None:
        """Note whether a batch from remote workers was still needed."""
        if was_needed:
            self._limit += 1
            return
        if self._remote_workers is not None:
            self._remote_workers.discard(number)
        self._limit = max(1.0, min(self._limit, len(self.numbers)) / 2)

    def note_failure(self, batch: int, failure: BatchFailure, worker: int) -> None:
        """Note a batch that failed remotely: it is made here before anyone is blamed."""
        self._failures[batch] = failure, worker

    def note_built_locally(self, batch: int) -> None:
        """Note a batch made here; if it failed remotely, report that failure to remote workers."""
        failed = self._failures.pop(batch, None)
        if failed is not None and self._remote_workers is not None:
            self._remote_workers.report_failure(*failed)

    def close(self) -> None:
        """End the remote workers."""
        if self._remote_workers is not None:
            self._remote_workers.close()
