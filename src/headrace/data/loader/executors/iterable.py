"""The executor for iterable datasets: each worker process iterates its partition of the dataset.

A partition is what the dataset gives to one worker's number, as torch's `get_worker_info()` tells
it. Batches are taken from the partitions in turn, as torch does, and those that have ended are
passed by. Some partitions may be remote workers'. One that these give up returns: a worker here
begins it anew, passes over what was made of it, and goes on. So the batches are the same, whoever
makes them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from headrace.core.errors import LoaderError, WorkerError
from headrace.data.loader.batch_builder import SKIPPED_BATCHES, BatchSpec
from headrace.data.loader.executors.base import BuiltBatch, RemoteWorkers
from headrace.data.loader.executors.dispatch import BatchTask
from headrace.data.loader.executors.process import ProcessExecutor, describe_exit
from headrace.data.loader.workers.messages import TASKS_PER_WORKER, Answer, AnswerMessage
from headrace.data.loader.workers.pool import WorkerPool

_REMOTE_PREFETCH = 2  # batches of a strand that a helper is asked for at a time
_STALLED_S = 1.0  # this process itself was stopped for what is more between two looks
_RECLAIM_TIMEOUT_S = 10.0  # a helper that does not give back what it is asked to is ended


class IterableExecutor(ProcessExecutor):
    """Worker processes on this host, each with its strand of an iterable dataset.

    Args:
        workers: How many.
        prefetch_batches: How many batches are under way or made ahead; at least one a worker.
        rank: The rank they work for, for messages.
        modules: What dataset and transforms are defined in, to be imported early.
        helper: Goes through as many strands more as it has workers for.

    Attributes:
        workers: How many strands there are: of workers here, and of those the helper stands for.
    """

    restarts_workers = True

    def __init__(
        self,
        workers: int,
        prefetch_batches: int,
        *,
        rank: int,
        modules: Sequence[str] = (),
        helper: RemoteWorkers | None = None,
    ) -> None:
        self._others = range(workers, workers + (helper.strands if helper is not None else 0))
        super().__init__(workers, prefetch_batches, rank=rank, modules=modules, helper=helper)
        self.workers = self._others.stop

    def _new_worker_pool(self, modules: Sequence[str]) -> WorkerPool:
        return WorkerPool(
            self._others.stop,
            self._slots.descriptors,
            rank=self._rank,
            queues=self._others.stop,
            modules=modules,
            beginning=self._others.start,
        )

    def _most_ahead(self) -> int:
        return self._depth + _REMOTE_PREFETCH * len(self._others)

    def _reset(self) -> None:
        super()._reset()
        self._remote_partitions = set(self._others)
        # Strand -> batches of it and their slots, until the helper has nothing of it any more.
        self._returning_partitions: dict[int, list[tuple[int, int]]] = {}
        self._exhausted: set[int] = set()
        self._waited_for = -1, 0.0, 0.0  # a batch, how long so far, and when that was looked at
        self._held_up_s: dict[int, float] = {}  # strand -> how long all have waited for it
        self._reclaim_requested: dict[int, float] = {}  # strand -> when
        self._reclaimed_partitions: set[int] = set()  # and their time begins anew
        self._last_progress = 0

    def has_room(self) -> bool:
        """Whether another order can be taken now."""
        under_way = self._submitted - self._dispatch.next_delivery
        most = max(self._depth, min(self._most_ahead(), self._remote_tasks.most_fitting))
        return under_way < most and self._slots.free_count() > 0

    def submit(self, order: BatchSpec) -> None:
        """Take the order of the next batch; only when there is room."""
        slot = self._slots.take()
        assert slot is not None  # the stream asks has_room() first
        batch = self._submitted
        self._submitted += 1
        self._batch_specs[batch] = replace(order, place=batch // self.workers)
        self._assign(batch, slot)

    def _assign(self, batch: int, slot: int) -> None:
        partition = batch % self.workers
        if partition in self._returning_partitions:
            self._returning_partitions[partition].append((batch, slot))
            return
        ticket = self._dispatch.issue(batch, slot)
        if partition in self._exhausted:
            self._note(AnswerMessage(Answer.EXHAUSTED, partition, ticket.number, slot, 0, 0))
        elif partition in self._remote_partitions:
            self._remote_tasks.send(self._written(ticket), partition)
        else:
            self._worker_pool.need(partition)
            self._send(ticket)

    def _queue_of(self, batch: int) -> int:
        return batch % self.workers

    def _note(self, answer: AnswerMessage) -> bool:
        batch = self._dispatch.batch_of(answer.number)
        if batch is None:
            return False  # of a helper that was given up
        if answer.answer is Answer.EXHAUSTED:
            self._exhausted.add(batch % self.workers)
        return super()._note(answer)

    def _build_locally(self, lost: list[BatchTask]) -> None:
        """Have the strands of tickets that were given up come home, with all their open batches."""
        for ticket in lost:
            partition = ticket.batch % self.workers
            self._remote_partitions.discard(partition)
            self._returning_partitions.setdefault(partition, []).append((ticket.batch, ticket.slot))
        open_away = map(self._dispatch.batch_of, self._remote_tasks.numbers)
        still_away = {batch % self.workers for batch in open_away if batch is not None}
        for partition in self._returning_partitions.keys() - still_away:
            self._reclaimed_partitions.add(partition)
            for batch, slot in sorted(self._returning_partitions.pop(partition)):
                self._assign(batch, slot)

    def _rebalance(self) -> None:
        """Have a strand that holds up all others, and is the helper's, come home."""
        now_s, batch = time.monotonic(), self._dispatch.next_delivery
        partition, places = batch % self.workers, batch // self.workers
        waited_s = self._note_wait(now_s, batch)
        if partition not in self._remote_partitions:
            return
        requested_s = self._reclaim_requested.get(partition)
        if requested_s is None:
            held_up_s = self._held_up_s[partition]
            if self._remote_tasks.is_overdue(waited_s, held_up_s, places, self._pace):
                self._reclaim_requested[partition] = now_s
                self._remote_tasks.reclaim_partition(partition)
        elif now_s - requested_s > _RECLAIM_TIMEOUT_S:
            self._drop_remote_workers()

    def _note_wait(self, now_s: float, batch: int) -> float:
        """Note that a batch is waited for; return for how long, without what this process slept."""
        before, waited_s, looked_s = self._waited_for
        if before != batch:
            waited_s, looked_s = 0.0, now_s
        since_s = min(now_s - looked_s, _STALLED_S)
        partition = batch % self.workers
        self._held_up_s[partition] = self._held_up_s.get(partition, 0.0) + since_s
        self._waited_for = batch, waited_s + since_s, now_s
        return waited_s + since_s

    def _drop_remote_workers(self) -> None:
        numbers = set(self._remote_tasks.numbers)
        self._remote_tasks.forget()
        self._remote_partitions.clear()
        self._build_locally(self._dispatch.forget(numbers))

    def _find_unseen(self) -> None:
        """Have what was a helper's come home, where that has ended.

        A worker here that dies ends the iteration: its position died with it.
        """
        lost = self._remote_tasks.lost()
        if lost:
            self._remote_partitions.clear()
            self._build_locally(self._dispatch.forget(lost))

    def _may_still_come(self) -> bool:
        """Whether what is overdue is on its way: away, or behind what a worker passes over."""
        partition = self._dispatch.next_delivery % self.workers
        if partition in self._remote_partitions or partition in self._returning_partitions:
            return True  # it comes home in time
        if partition in self._reclaimed_partitions:
            self._reclaimed_partitions.discard(partition)
            return True
        progress, before = (
            int(self._worker_pool.status_table[partition][TASKS_PER_WORKER]),
            self._last_progress,
        )
        self._last_progress = progress
        return progress <= SKIPPED_BATCHES and progress != before

    def _delivered(self, ticket: BatchTask) -> BuiltBatch:
        self._last_progress = 0
        try:
            return super()._delivered(ticket)
        except WorkerError as error:
            if not self._others or ticket.batch >= self.workers:
                raise
            # With the first batch of a share it is often its size that is at fault.
            told = WorkerError(f"{error}\n{self._how_shared()}")
            raise told from error.__cause__

    def _how_shared(self) -> str:
        return (
            f"The dataset is shared among {self.workers} workers, {len(self._others)} of them on "
            "auxiliary hosts. Where that is more than it has shards for, give it more shards, or "
            "have fewer workers there: --group cpu=1:cpus=K counts K for all ranks."
        )

    def _raise_if_hopeless(self, worker: int, status: int, lost: list[BatchTask]) -> None:
        del lost  # whatever it was: the worker's place in its strand is gone
        raise LoaderError(
            f"rank {self._rank}: worker {worker} ended ({describe_exit(status)}) in the middle of "
            f"an iterable dataset, whose position died with it. Map-style datasets go on."
        )
