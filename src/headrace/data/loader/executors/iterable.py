"""The executor for iterable datasets: each worker process iterates its partition of the dataset.

A partition is what the dataset yields for one worker number, which torch's `get_worker_info()`
returns. Batches are taken from the partitions in turn, as torch does, skipping those that have
ended. Some partitions may be iterated by remote workers. If they give one up, a worker here
iterates it from the start, skips the batches made before, and goes on. So the batches are the same,
whichever worker makes them.
"""

from __future__ import annotations

import time
from dataclasses import replace

from headrace.core.errors import LoaderError, WorkerError
from headrace.data.loader.batch_builder import SKIPPED_BATCHES, BatchSpec
from headrace.data.loader.executors.base import BuiltBatch
from headrace.data.loader.executors.dispatch import BatchTask, is_partition_overdue
from headrace.data.loader.executors.process import ProcessExecutor, describe_exit
from headrace.data.loader.workers.messages import TASKS_PER_WORKER, Answer, AnswerMessage

_REMOTE_PREFETCH = 2  # batches of a partition that remote workers have at a time
_STALLED_S = 1.0  # a longer gap between two checks means that this process was stopped
_RECLAIM_TIMEOUT_S = 10.0  # for remote workers to return a partition, before they are ended


class IterableExecutor(ProcessExecutor):
    """Worker processes on this host, each with its partition of an iterable dataset.

    Remote workers iterate further partitions: `workers` is the number of all.
    """

    has_partitions = True

    def _most_ahead(self) -> int:
        return self._depth + _REMOTE_PREFETCH * len(self._remote_numbers)

    def _reset(self) -> None:
        super()._reset()
        self._remote_partitions = set(self._remote_numbers)
        # Partition -> its batches and slots, until remote workers hold none of it any more.
        self._returning_partitions: dict[int, list[tuple[int, int]]] = {}
        self._exhausted: set[int] = set()
        self._waited_for = -1, 0.0, 0.0  # a batch, seconds so far, time of the last check
        self._held_up_s: dict[int, float] = {}  # partition -> how long the script waited for it
        self._reclaim_requested: dict[int, float] = {}  # partition -> when
        self._reclaimed_partitions: set[int] = set()  # the batch timeout starts again
        self._last_progress = 0

    def _may_submit(self, in_flight: int) -> bool:
        return in_flight < max(
            self._depth, min(self._most_ahead(), self._remote_tasks.most_fitting)
        )

    def submit(self, spec: BatchSpec) -> None:
        """Take the spec of the next batch; only when there is room."""
        super().submit(replace(spec, place=self._submitted // self.workers))

    def _assign(self, batch: int, slot: int) -> None:
        partition = batch % self.workers
        if partition in self._returning_partitions:
            self._returning_partitions[partition].append((batch, slot))
            return
        task = self._dispatch.issue(batch, slot)
        if partition in self._exhausted:
            self._note(AnswerMessage(Answer.EXHAUSTED, partition, task.number, slot))
        elif partition in self._remote_partitions:
            self._send(task, remotely=True)
        else:
            self._worker_pool.need(partition)
            self._send(task)

    def _queue_of(self, batch: int) -> int:
        return batch % self.workers

    def _note(self, answer: AnswerMessage) -> bool:
        batch = self._dispatch.batch_of(answer.number)
        if batch is None:
            return False  # of dropped remote workers
        if answer.answer is Answer.EXHAUSTED:
            self._exhausted.add(batch % self.workers)
        return super()._note(answer)

    def _build_locally(self, lost: list[BatchTask]) -> None:
        """Move the partitions of lost tasks to workers here, with all their open batches."""
        for task in lost:
            partition = task.batch % self.workers
            self._remote_partitions.discard(partition)
            self._returning_partitions.setdefault(partition, []).append((task.batch, task.slot))
        open_remotely = map(self._dispatch.batch_of, self._remote_tasks.numbers)
        still_remote = {batch % self.workers for batch in open_remotely if batch is not None}
        for partition in self._returning_partitions.keys() - still_remote:
            self._reclaimed_partitions.add(partition)
            for batch, slot in sorted(self._returning_partitions.pop(partition)):
                self._assign(batch, slot)

    def _rebalance(self) -> None:
        """Move a remote partition here where it delays all others."""
        now_s, batch = time.monotonic(), self._dispatch.next_delivery
        partition, batches_before = batch % self.workers, batch // self.workers
        waited_s = self._note_wait(now_s, batch)
        if partition not in self._remote_partitions:
            return
        requested_s = self._reclaim_requested.get(partition)
        if requested_s is None:
            held_up_s = self._held_up_s[partition]
            paces = self._pace, self._remote_tasks.pace
            if is_partition_overdue(waited_s, held_up_s, batches_before, *paces):
                self._reclaim_requested[partition] = now_s
                self._remote_tasks.reclaim_partition(partition)
        elif now_s - requested_s > _RECLAIM_TIMEOUT_S:
            self._drop_remote_workers()

    def _note_wait(self, now_s: float, batch: int) -> float:
        """Note a wait for a batch; return its length without time that this process was stopped."""
        before, waited_s, checked_s = self._waited_for
        if before != batch:
            waited_s, checked_s = 0.0, now_s
        since_s = min(now_s - checked_s, _STALLED_S)
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
        """Move remote partitions here where the remote workers have ended.

        A worker here that dies ends the iteration: its position died with it.
        """
        lost = self._remote_tasks.lost()
        if lost:
            self._remote_partitions.clear()
            self._build_locally(self._dispatch.forget(lost))

    def _may_still_come(self) -> bool:
        """Return whether the batch may still arrive: from elsewhere, or after skipped batches."""
        partition = self._dispatch.next_delivery % self.workers
        if partition in self._remote_partitions or partition in self._returning_partitions:
            return True  # `_rebalance` moves it here in time
        if partition in self._reclaimed_partitions:
            self._reclaimed_partitions.discard(partition)
            return True
        before = self._last_progress
        progress = int(self._worker_pool.status_table[partition][TASKS_PER_WORKER])
        self._last_progress = progress
        return progress <= SKIPPED_BATCHES and progress != before

    def _delivered(self, task: BatchTask) -> BuiltBatch:
        self._last_progress = 0
        try:
            return super()._delivered(task)
        except WorkerError as error:
            if not self._remote_numbers or task.batch >= self.workers:
                raise
            # With a partition's first batch, the number of partitions is often the cause.
            raise WorkerError(
                f"{error}\nThe dataset is shared among {self.workers} workers, "
                f"{len(self._remote_numbers)} of them on auxiliary hosts. Where that is more than "
                "it has shards for, give it more shards, or have fewer workers there: "
                "--group cpu=1:cpus=K counts K for all ranks."
            ) from error.__cause__

    def _raise_if_hopeless(self, worker: int, status: int, lost: list[BatchTask]) -> None:
        del lost  # in any case the worker's position in its partition is lost
        raise LoaderError(
            f"rank {self._rank}: worker {worker} ended ({describe_exit(status)}) in the middle of "
            f"an iterable dataset, whose position died with it. Map-style datasets go on."
        )
