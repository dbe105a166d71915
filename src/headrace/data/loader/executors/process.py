"""The executor with worker processes on this host and batches in shared memory."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from headrace.core.errors import LoaderError, LoaderTimeoutError
from headrace.data.loader.batch_builder import BatchSpec, LoaderSpec
from headrace.data.loader.executors.base import BuiltBatch, RemoteWorkers
from headrace.data.loader.executors.dispatch import BatchTask, Dispatch, LocalDuration, RemoteTasks
from headrace.data.loader.failures import BatchFailure, describe_sample, sample_at
from headrace.data.loader.workers.messages import (
    TASKS_PER_WORKER,
    Answer,
    AnswerMessage,
    TaskMessage,
)
from headrace.data.loader.workers.pool import WorkerPool, pickle_loader_spec
from headrace.data.loader.workers.shared_memory import SlotPool

# Slots beyond those in flight. A script holds one batch while it waits for the next, and may
# keep one more; with fewer free than the batches in flight need, a batch is copied out.
_SPARE_SLOTS = 3
_LOST_TASK_CHECK_S = 0.5  # how often a wait looks for tasks that were lost silently
_REMOTE_CHECK_S = 0.02  # ... and for late batches of remote workers
_MAX_DEATHS_IN_A_ROW = 3  # times the number of workers


class ProcessExecutor:
    """Worker processes on this host; remote workers take batches beyond what these can make.

    Up to `prefetch_batches` are unfinished or prefetched, and at least one a worker; `modules` are
    those of dataset and transforms, imported early.
    """

    # Whether each worker, and remote ones, too, iterates its own partition of the dataset: it has a
    # queue for it, and restarts with each iteration.
    has_partitions = False

    def __init__(
        self,
        workers: int,
        prefetch_batches: int,
        *,
        rank: int,
        modules: Sequence[str] = (),
        remote_workers: RemoteWorkers | None = None,
    ) -> None:
        self._remote_numbers = range(0)  # of the partitions of remote workers
        if self.has_partitions:
            remote = remote_workers.partitions if remote_workers is not None else 0
            self._remote_numbers = range(workers, workers + remote)
        self.workers = workers + len(self._remote_numbers)
        self._depth = max(prefetch_batches, workers)
        self._rank = rank
        self._remote_tasks = RemoteTasks(remote_workers)
        self._maps_files = remote_workers is None  # they get the same, and may lack the files
        with ExitStack() as opened:  # closed where a later part fails
            self._slots = SlotPool(self._most_ahead() + _SPARE_SLOTS)
            opened.callback(self._slots.close)
            self._worker_pool = WorkerPool(
                self.workers,
                self._slots.descriptors,
                rank=rank,
                queues=self.workers if self.has_partitions else 1,
                modules=modules,
                beginning=workers,
            )
            opened.callback(self._worker_pool.close)
            if remote_workers is not None:
                opened.callback(remote_workers.close)
                remote_workers.connect(self._slots.descriptors, self._worker_pool.answers.fileno())
            opened.pop_all()
        self._clean = True
        self._loader_spec: LoaderSpec | None = None
        self._pace = LocalDuration()
        self._reset()

    def _most_ahead(self) -> int:
        return self._remote_tasks.slots_for(self._depth)

    def _reset(self) -> None:
        self._dispatch = Dispatch()
        self._batch_specs: dict[int, BatchSpec] = {}
        self._answers: dict[int, AnswerMessage] = {}  # by task, for batches not delivered yet
        self._missing: set[int] = set()
        self._checked_s = self._rebalanced_s = 0.0
        self._deaths_in_a_row = 0
        self._submitted = 0
        self._pace.sent.clear()

    def start(self, loader_spec: LoaderSpec) -> None:
        """Prepare for an iteration; raises LoaderError where the loader spec cannot be sent."""
        pickled_spec = pickle_loader_spec(loader_spec, maps_files=self._maps_files)
        if not self._clean or self.has_partitions:
            is_at_work = self._open_here > 0  # computed before remote tasks are dropped
            self._remote_tasks.forget()
            if is_at_work or self.has_partitions:
                self._worker_pool.end_workers()
            self._worker_pool.forget_answers()
            self._slots.reclaim()
        self._reset()
        self._loader_spec = loader_spec
        self._clean = False
        self._remote_tasks.start(pickled_spec, self._remote_numbers)
        self._worker_pool.start(pickled_spec)

    def has_room(self) -> bool:
        """Return whether another batch spec can be submitted now."""
        return self._may_submit(self._in_flight) and self._slots.free_count() > 0

    def _may_submit(self, in_flight: int) -> bool:
        return in_flight < self._remote_tasks.max_in_flight(self._depth) and (
            self._open_here < self._depth or self._remote_tasks.has_room
        )

    @property
    def _in_flight(self) -> int:
        """The number of batches that are submitted and not delivered."""
        return self._submitted - self._dispatch.next_delivery

    @property
    def _open_here(self) -> int:
        return self._dispatch.open_count - len(self._remote_tasks.numbers)

    @property
    def _is_sooner_remotely(self) -> bool:
        """Whether, at the start of an iteration, workers here are busy and remote ones are idle.

        Later the queue here is kept full: workers here go first.
        """
        begins = self._submitted <= self._depth + self._remote_tasks.workers
        return begins and self._open_here >= self.workers and self._remote_tasks.has_idle_workers

    def submit(self, spec: BatchSpec) -> None:
        """Take the spec of the next batch; only when there is room."""
        slot = self._slots.take()
        assert slot is not None  # the stream calls has_room() first
        batch = self._submitted
        self._submitted += 1
        self._batch_specs[batch] = spec
        self._assign(batch, slot)

    def _assign(self, batch: int, slot: int) -> None:
        is_remote = self._open_here >= self._depth or self._is_sooner_remotely
        self._send(self._dispatch.issue(batch, slot), remotely=is_remote)

    def _send(self, task: BatchTask, *, remotely: bool = False) -> None:
        """Write a task's batch spec to its slot, and send the task."""
        payload = self._batch_specs[task.batch].to_bytes()
        self._slots.write(task.slot, payload)
        is_first = task.batch == 0
        message = TaskMessage(task.number, task.slot, len(payload), is_first_batch=is_first)
        if remotely:
            self._remote_tasks.send(message, self._queue_of(task.batch))
        else:
            self._pace.note_sent(task.number, max(1.0, self._open_here / self.workers))
            self._worker_pool.send(message, self._queue_of(task.batch))

    def _queue_of(self, batch: int) -> int:  # noqa: ARG002 - any free worker takes it
        return 0

    def next_made(self, timeout_s: float, on_room: Callable[[], None]) -> BuiltBatch:
        """Return the next batch in order; raises as in `Executor`."""
        deadline = time.monotonic() + timeout_s
        while (task := self._dispatch.deliver()) is None:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                if not self._may_still_come():
                    raise self._overdue(timeout_s)
                deadline += timeout_s
                continue
            check_s = _LOST_TASK_CHECK_S if not self._remote_tasks.numbers else _REMOTE_CHECK_S
            answers, deaths = self._worker_pool.wait(min(remaining_s, check_s))
            self._take_in(answers, deaths)
            if not answers and not deaths:
                self._find_unseen()
            if self._remote_tasks.numbers:
                self._rebalance()
            if self.has_room():
                on_room()
        return self._delivered(task)

    def _may_still_come(self) -> bool:
        return False

    def _rebalance(self) -> None:
        """Have a batch that is waited for, and is slow on one side, made on the other as well."""
        now_s, first = time.monotonic(), self._dispatch.next_delivery
        if now_s - self._rebalanced_s < _REMOTE_CHECK_S:
            return
        self._rebalanced_s = now_s
        for batch in range(first, first + max(1, self.workers - self._open_here)):
            numbers = [task.number for task in self._dispatch.tasks_for(batch)]
            if len(numbers) != 1 or not self._dispatch.is_needed(batch):
                continue  # both sides are making it, or it is made
            is_remote = numbers[0] in self._remote_tasks.numbers
            has_idle = self._open_here < self.workers
            is_slow = self._remote_tasks.is_slow(numbers[0], self._pace, has_idle_local=has_idle)
            if is_slow and (slot := self._slots.take()) is not None:
                self._send(self._dispatch.issue(batch, slot), remotely=not is_remote)

    def _take_in(self, answers: list[AnswerMessage], deaths: list[tuple[int, int]]) -> None:
        for answer in answers:
            if self._remote_tasks.note(answer):
                self._note_remote_answer(answer)
            else:
                self._deaths_in_a_row = 0
                self._note(answer)
        if deaths:
            self._replace_dead(deaths)

    def _note_remote_answer(self, answer: AnswerMessage) -> None:
        if answer.answer is Answer.ROOM:
            return
        if answer.answer in {Answer.MADE, Answer.EXHAUSTED}:
            self._remote_tasks.note_in_time(answer.number, was_needed=self._note(answer))
            return
        lost = self._dispatch.forget({answer.number})
        if answer.answer is Answer.FAILED:
            content = self._slots.read(answer.slot, answer.offset, answer.size_bytes)
            failure = BatchFailure.from_bytes(content)
            self._remote_tasks.note_failure(lost[0].batch, failure, answer.worker)
        self._build_locally(lost)

    def _build_locally(self, lost: list[BatchTask]) -> None:
        """Have lost tasks made here, except those whose batch nobody needs."""
        for task in lost:
            # Of two lost tasks of one batch only the first is issued again.
            if self._dispatch.is_needed(task.batch) and not self._dispatch.tasks_for(task.batch):
                self._send(self._dispatch.issue(task.batch, task.slot))
            else:
                self._slots.give(task.slot)

    def _note(self, answer: AnswerMessage) -> bool:
        """Note that a task is done; return whether its batch was still needed."""
        self._pace.note_done(answer.number)
        superfluous = self._dispatch.finish(answer.number)
        if superfluous is not None:
            self._slots.give(superfluous.slot)
            return False
        self._answers[answer.number] = answer
        return True

    def _delivered(self, task: BatchTask) -> BuiltBatch:
        del self._batch_specs[task.batch]
        # Batches in flight must find free slots even if the script keeps every batch.
        lends = self._slots.free_count() + self._in_flight >= self._depth
        answer = self._answers.pop(task.number)
        if answer.answer is Answer.EXHAUSTED:
            self._slots.give(answer.slot)
            return BuiltBatch(batch=task.batch, exhausted=True)
        structure = self._slots.read(answer.slot, answer.offset, answer.size_bytes)
        if answer.answer is Answer.FAILED:
            self._slots.give(answer.slot)
            where = f"rank {self._rank}, worker {answer.worker}"
            raise BatchFailure.from_bytes(structure).in_caller(where)
        read = self._slots.lend if lends else self._slots.copy_out
        content, bad, samples = read(answer.slot, structure)
        self._remote_tasks.note_built_locally(task.batch)
        return BuiltBatch(batch=task.batch, content=content, bad=tuple(bad), samples=samples)

    def _replace_dead(self, deaths: list[tuple[int, int]]) -> None:
        held = self._worker_pool.assigned_tasks()
        for worker, status in deaths:
            lost = self._dispatch.forget(held[worker])
            self._raise_if_hopeless(worker, status, lost)
            self._worker_pool.fork(worker)
            self._build_locally(lost)

    def _find_unseen(self) -> None:
        """Look for tasks that vanished with a worker before the status table had them.

        The kernel may give a message to a process that is being killed. A task that is missing at
        two checks in a row is lost; then all workers restart with all open tasks, so that nobody
        can still be writing to its slot. A check reads the status table first and the answers after
        it, so that a task finished in between does not count as missing.
        """
        if time.monotonic() - self._checked_s < _LOST_TASK_CHECK_S:
            return
        self._checked_s = time.monotonic()
        self._build_locally(self._dispatch.forget(self._remote_tasks.lost()))
        held = set().union(*self._worker_pool.assigned_tasks().values())
        unseen = self._dispatch.unseen(held, none_waiting=self._worker_pool.none_waiting())
        self._take_in(*self._worker_pool.wait(0))
        local_tasks = self._dispatch.open_numbers() - self._remote_tasks.numbers.keys()
        unseen &= local_tasks
        if unseen & self._missing:
            # Remote workers' answers are thrown away, too: they restart as well.
            self._remote_tasks.forget()
            self._worker_pool.end_workers()
            self._worker_pool.start_workers()
            self._remote_tasks.resume_after_restart()
            # Each open batch is made once, here; nobody writes to any slot now.
            self._build_locally(self._dispatch.forget(self._dispatch.open_numbers()))
            unseen = set()
        self._missing = unseen

    def _raise_if_hopeless(self, worker: int, status: int, lost: list[BatchTask]) -> None:
        """Count deaths: a batch that kills every worker is the script's fault."""
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row >= _MAX_DEATHS_IN_A_ROW * self.workers:
            at = self._sample_at(lost[0], worker) if lost else "the start"
            raise LoaderError(
                f"rank {self._rank}: {self._deaths_in_a_row} workers in turn ended without making "
                f"a batch, the last with {describe_exit(status)} at {at}. SIGKILL often means that "
                "memory ran out; SIGSEGV is a crash in native code that the dataset calls."
            )

    def _overdue(self, timeout_s: float) -> LoaderTimeoutError:
        late = f"rank {self._rank}: batch {self._dispatch.next_delivery} did not arrive"
        within = f"within {timeout_s:g} s"
        advice = "Raise timeout_s if the work really takes that long."
        held = self._worker_pool.assigned_tasks()
        for task in self._dispatch.tasks_for(self._dispatch.next_delivery):
            if task.number in self._remote_tasks.numbers:
                return LoaderTimeoutError(f"{late} from the auxiliary hosts {within}. {advice}")
            for worker, numbers in held.items():
                if task.number in numbers:
                    at = f"Worker {worker} is at {self._sample_at(task, worker)}."
                    return LoaderTimeoutError(f"{late} {within}. {at} {advice}")
        return LoaderTimeoutError(
            f"{late} {within} and no worker has begun it: all {self.workers} are still starting or "
            "busy with earlier batches."
        )

    def _sample_at(self, task: BatchTask, worker: int) -> str:
        progress = int(self._worker_pool.status_table[worker][TASKS_PER_WORKER])
        assert self._loader_spec is not None
        index = sample_at(self._batch_specs[task.batch].indices, progress)
        return describe_sample(self._loader_spec.dataset, index)

    def finish(self) -> None:
        """Drop unfinished batches: the iteration has ended or was abandoned."""
        # Where every batch was delivered, the workers just wait for tasks.
        self._clean = self._dispatch.settled
        # The dataset or functions may refer to the loader; this must not keep them alive.
        self._loader_spec = None
        self._remote_tasks.finish()

    @property
    def usable(self) -> bool:
        """Whether it can begin an iteration: its forkserver lives and is this process's child."""
        return self._worker_pool.usable

    def close(self) -> None:
        """End all workers and free all memory that no batch uses."""
        self._remote_tasks.close()
        self._worker_pool.close()
        self._slots.close()


def describe_exit(status: int) -> str:
    """Return how a process ended, from its exit status."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
