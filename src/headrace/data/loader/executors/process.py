"""The executor with worker processes on this host and batches in shared memory."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.core.errors import LoaderError, LoaderTimeoutError
from headrace.data.loader.batch_builder import BatchSpec, LoaderSpec
from headrace.data.loader.executors.base import BuiltBatch, RemoteWorkers
from headrace.data.loader.executors.dispatch import BatchTask, Dispatch
from headrace.data.loader.executors.speculation import BatchDuration, RemoteTasks
from headrace.data.loader.failures import BatchFailure, describe_sample, sample_at
from headrace.data.loader.workers.messages import (
    TASKS_PER_WORKER,
    Answer,
    AnswerMessage,
    TaskMessage,
)
from headrace.data.loader.workers.pool import WorkerPool, pickle_loader_spec
from headrace.data.loader.workers.shared_memory import SlotPool

# Slots beyond those at work. A script holds the batch at hand while it asks for the next, and may
# keep one more; with fewer free than are needed for the work under way, a batch is copied out.
_SPARE_SLOTS = 3
_LOST_TASK_CHECK_S = 0.5  # how often a wait looks for tickets that were lost without a trace
_REMOTE_CHECK_S = 0.02  # ... and for batches that helpers take too long over
_MAX_DEATHS_IN_A_ROW = 3  # times the number of workers


class ProcessExecutor:
    """Worker processes on this host.

    Args:
        workers: How many.
        prefetch_batches: How many batches are under way or made ahead; at least one a worker.
        rank: The rank they work for, for messages.
        modules: What dataset and transforms are defined in, to be imported early.
        helper: Takes what the workers have no hands for.

    Attributes:
        workers: How many worker processes make batches.
    """

    restarts_workers = False  # with each iteration: workers and whoever helps them
    _others = range(0)  # numbers of the workers that the helper stands for

    def __init__(
        self,
        workers: int,
        prefetch_batches: int,
        *,
        rank: int,
        modules: Sequence[str] = (),
        helper: RemoteWorkers | None = None,
    ) -> None:
        self.workers = workers
        self._depth = max(prefetch_batches, workers)
        self._rank = rank
        self._remote_tasks = RemoteTasks(helper)
        self._slots = SlotPool(self._most_ahead() + _SPARE_SLOTS)
        try:
            self._worker_pool = self._new_worker_pool(modules)
        except BaseException:
            self._slots.close()
            raise
        if helper is not None:
            try:
                helper.connect(self._slots.descriptors, self._worker_pool.answers.fileno())
            except BaseException:
                self.close()
                raise
        self._clean = True
        self._loader_spec: LoaderSpec | None = None
        self._pace = BatchDuration()  # of a worker here
        self._reset()

    def _new_worker_pool(self, modules: Sequence[str]) -> WorkerPool:
        return WorkerPool(
            self.workers, self._slots.descriptors, rank=self._rank, queues=1, modules=modules
        )

    def _most_ahead(self) -> int:
        return self._remote_tasks.slots_for(self._depth)

    def _reset(self) -> None:
        self._dispatch = Dispatch()
        self._batch_specs: dict[int, BatchSpec] = {}
        self._results: dict[int, AnswerMessage] = {}
        self._missing: set[int] = set()
        self._looked_s = self._asked_others_s = 0.0
        self._deaths_in_a_row = 0
        self._submitted = 0
        # Ticket here -> when it was issued, and how many rounds of the workers it waits for.
        self._issued: dict[int, tuple[float, float]] = {}

    def start(self, recipe: LoaderSpec) -> None:
        """Get ready for an iteration over `recipe`; raises LoaderError where it cannot be sent."""
        packed = pickle_loader_spec(recipe)
        if not self._clean or self.restarts_workers:
            is_at_work = self._open_here > 0  # asked before it is forgotten what others have
            self._remote_tasks.forget()
            if is_at_work or self.restarts_workers:
                self._worker_pool.end_workers()
            self._worker_pool.forget_answers()
            self._slots.reclaim()
        self._reset()
        self._loader_spec = recipe
        self._clean = False
        self._remote_tasks.start(packed, self._others)
        self._worker_pool.start(packed)

    def has_room(self) -> bool:
        """Whether another order can be taken now."""
        under_way = self._submitted - self._dispatch.next_delivery
        return (
            under_way < self._remote_tasks.max_in_flight(self._depth)
            and (self._has_local_room or self._remote_tasks.has_room)
            and self._slots.free_count() > 0
        )

    @property
    def _open_here(self) -> int:
        return self._dispatch.open_count - len(self._remote_tasks.numbers)

    @property
    def _has_local_room(self) -> bool:
        return self._open_here < self._depth

    @property
    def _is_sooner_remotely(self) -> bool:
        """Whether, at the begin of an iteration, all workers here are at work and others are not.

        Later the queue here is kept full: whoever is here goes first.
        """
        begins = self._submitted <= self._depth + self._remote_tasks.workers
        return begins and self._open_here >= self.workers and self._remote_tasks.has_idle_workers

    def submit(self, order: BatchSpec) -> None:
        """Take the order of the next batch; only when there is room."""
        slot = self._slots.take()
        assert slot is not None  # the stream asks has_room() first
        batch = self._submitted
        self._submitted += 1
        self._batch_specs[batch] = order
        is_for_here = self._has_local_room and not self._is_sooner_remotely
        message = self._written(self._dispatch.issue(batch, slot))
        if is_for_here:
            self._send_here(message, batch)
        else:
            self._remote_tasks.send(message)

    def _send(self, ticket: BatchTask) -> None:
        self._send_here(self._written(ticket), ticket.batch)

    def _send_here(self, message: TaskMessage, batch: int) -> None:
        rounds = max(1.0, self._open_here / self.workers)
        self._issued[message.number] = time.monotonic(), rounds
        self._worker_pool.send(message, self._queue_of(batch))

    def _queue_of(self, batch: int) -> int:  # noqa: ARG002 - whoever has a hand free takes it
        return 0

    def _written(self, ticket: BatchTask) -> TaskMessage:
        """Write a ticket's order to its slot; return what tells of it."""
        payload = self._batch_specs[ticket.batch].to_bytes()
        self._slots.write(ticket.slot, payload)
        first = ticket.batch == 0
        return TaskMessage(ticket.number, ticket.slot, len(payload), is_first_batch=first)

    def next_made(self, timeout_s: float, on_room: Callable[[], None]) -> BuiltBatch:
        """Return the next batch in order; raises as `Executor` says."""
        deadline = time.monotonic() + timeout_s
        while (ticket := self._dispatch.deliver()) is None:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                if not self._may_still_come():
                    raise self._overdue(timeout_s)
                deadline += timeout_s
                continue
            look_s = _LOST_TASK_CHECK_S if not self._remote_tasks.numbers else _REMOTE_CHECK_S
            answers, deaths = self._worker_pool.wait(min(remaining_s, look_s))
            self._take_in(answers, deaths)
            if not answers and not deaths:
                self._find_unseen()
            if self._remote_tasks.numbers:
                self._rebalance()
            if self.has_room():
                on_room()
        return self._delivered(ticket)

    def _may_still_come(self) -> bool:
        return False

    def _rebalance(self) -> None:
        """Have what is waited for, and takes long on one side, made on the other as well."""
        now_s, first = time.monotonic(), self._dispatch.next_delivery
        if now_s - self._asked_others_s < _REMOTE_CHECK_S:
            return
        self._asked_others_s = now_s
        for batch in range(first, first + max(1, self.workers - self._open_here)):
            numbers = [ticket.number for ticket in self._dispatch.tasks_for(batch)]
            if len(numbers) != 1 or not self._dispatch.is_needed(batch):
                continue  # both sides are at it, or it is made
            is_away = numbers[0] in self._remote_tasks.numbers
            if is_away and self._open_here < self.workers:
                if self._remote_tasks.prefers_local(numbers[0], self._pace):
                    self._issue(batch, away=False)
            elif not is_away and self._remote_tasks.prefers_remote(
                self._issued[numbers[0]], self._pace
            ):
                self._issue(batch, away=True)

    def _issue(self, batch: int, *, away: bool) -> None:
        slot = self._slots.take()
        if slot is None:
            return
        ticket = self._dispatch.issue(batch, slot)
        if away:
            self._remote_tasks.send(self._written(ticket))
        else:
            self._send(ticket)

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
            self._remote_tasks.note_in_time(was_needed=self._note(answer))
            return
        lost = self._dispatch.forget({answer.number})
        if answer.answer is Answer.FAILED:
            content = self._slots.read(answer.slot, answer.offset, answer.size_bytes)
            failure = BatchFailure.from_bytes(content)
            self._remote_tasks.note_failure(lost[0].batch, failure, answer.worker)
        self._build_locally(lost)

    def _build_locally(self, lost: list[BatchTask]) -> None:
        """Have tickets that were given up made here, but for those that nobody needs."""
        needed = [ticket for ticket in lost if self._is_open_question(ticket.batch)]
        for ticket in lost:
            if ticket not in needed:
                self._slots.give(ticket.slot)
        self._send_again(needed)

    def _is_open_question(self, batch: int) -> bool:
        return self._dispatch.is_needed(batch) and not self._dispatch.tasks_for(batch)

    def _note(self, answer: AnswerMessage) -> bool:
        """Note that a ticket is done; return whether its batch was still needed."""
        issued = self._issued.pop(answer.number, None)
        if issued is not None:
            self._pace.note((time.monotonic() - issued[0]) / issued[1])
        superfluous = self._dispatch.finish(answer.number)
        if superfluous is not None:
            self._slots.give(superfluous.slot)
            return False
        self._results[answer.number] = answer
        return True

    def _delivered(self, ticket: BatchTask) -> BuiltBatch:
        answer = self._results.pop(ticket.number)
        del self._batch_specs[ticket.batch]
        if answer.answer is Answer.EXHAUSTED:
            self._slots.give(answer.slot)
            return BuiltBatch(batch=ticket.batch, exhausted=True)
        structure = self._slots.read(answer.slot, answer.offset, answer.size_bytes)
        if answer.answer is Answer.FAILED:
            self._slots.give(answer.slot)
            where = f"rank {self._rank}, worker {answer.worker}"
            raise BatchFailure.from_bytes(structure).in_caller(where)
        self._remote_tasks.note_built_locally(ticket.batch)
        content, bad, samples = self._received(answer.slot, structure)
        return BuiltBatch(batch=ticket.batch, content=content, bad=tuple(bad), samples=samples)

    def _received(self, slot: int, structure: bytes) -> Any:
        under_way = self._submitted - self._dispatch.next_delivery
        # The work under way must find free slots even if the script keeps every batch it gets.
        if self._slots.free_count() + under_way >= self._depth:
            return self._slots.lend(slot, structure)
        return self._slots.copy_out(slot, structure)

    def _replace_dead(self, deaths: list[tuple[int, int]]) -> None:
        held = self._worker_pool.assigned_tasks()
        for worker, status in deaths:
            lost = self._dispatch.forget(held[worker])
            self._raise_if_hopeless(worker, status, lost)
            self._worker_pool.fork(worker)
            self._build_locally(lost)

    def _find_unseen(self) -> None:
        """Look for tickets that vanished with a worker before it could say that it had them.

        The kernel may give a message to a process that is being killed. A ticket that is missing at
        two looks in a row is lost; then all workers start anew with all that is open, so that
        nobody can still be writing to its slot. A look takes the board first and the answers after
        it, so that a ticket finished in between is not taken for missing.
        """
        if time.monotonic() - self._looked_s < _LOST_TASK_CHECK_S:
            return
        self._looked_s = time.monotonic()
        self._build_locally(self._dispatch.forget(self._remote_tasks.lost()))
        held = set().union(*self._worker_pool.assigned_tasks().values())
        unseen = self._dispatch.unseen(held, none_waiting=self._worker_pool.none_waiting())
        self._take_in(*self._worker_pool.wait(0))
        here = self._dispatch.open_numbers() - self._remote_tasks.numbers.keys()
        unseen &= here
        if unseen & self._missing:
            # Answers of the helper that are thrown away with those of the workers are lost, too.
            self._remote_tasks.forget()
            self._worker_pool.end_workers()
            self._worker_pool.start_workers()
            self._remote_tasks.resume_after_restart()
            self._rebuild_all()
            unseen = set()
        self._missing = unseen

    def _rebuild_all(self) -> None:
        """Have each open batch made once, here; nobody writes to any slot."""
        lost = self._dispatch.forget(self._dispatch.open_numbers())
        kept: dict[int, BatchTask] = {}
        for ticket in lost:
            if self._dispatch.is_needed(ticket.batch) and ticket.batch not in kept:
                kept[ticket.batch] = ticket
            else:
                self._slots.give(ticket.slot)
        self._send_again(list(kept.values()))

    def _send_again(self, lost: list[BatchTask]) -> None:
        for ticket in lost:
            self._send(self._dispatch.issue(ticket.batch, ticket.slot))

    def _raise_if_hopeless(self, worker: int, status: int, lost: list[BatchTask]) -> None:
        """Count deaths: a batch that kills every worker that tries it is the script's fault."""
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row < _MAX_DEATHS_IN_A_ROW * self.workers:
            return
        at = self._sample_at(lost[0], worker) if lost else "the start"
        raise LoaderError(
            f"rank {self._rank}: {self._deaths_in_a_row} workers in turn ended without making a "
            f"batch, the last with {describe_exit(status)} at {at}. SIGKILL often means that "
            "memory "
            f"ran out; SIGSEGV is a crash in native code that the dataset calls."
        )

    def _overdue(self, timeout_s: float) -> LoaderTimeoutError:
        batch = self._dispatch.next_delivery
        held = self._worker_pool.assigned_tasks()
        for ticket in self._dispatch.tasks_for(batch):
            if ticket.number in self._remote_tasks.numbers:
                return LoaderTimeoutError(
                    f"rank {self._rank}: batch {batch} did not arrive from the auxiliary hosts "
                    f"within {timeout_s:g} s. Raise timeout_s if the work really takes that long."
                )
            for worker, numbers in held.items():
                if ticket.number in numbers:
                    return LoaderTimeoutError(
                        f"rank {self._rank}: batch {batch} did not arrive within {timeout_s:g} s. "
                        f"Worker {worker} is at {self._sample_at(ticket, worker)}. Raise timeout_s "
                        f"if the work really takes that long."
                    )
        return LoaderTimeoutError(
            f"rank {self._rank}: batch {batch} did not arrive within {timeout_s:g} s and no worker "
            f"has begun it: all {self.workers} are still starting or busy with earlier batches."
        )

    def _sample_at(self, ticket: BatchTask, worker: int) -> str:
        order = self._batch_specs[ticket.batch]
        index = sample_at(
            order.indices, int(self._worker_pool.status_table[worker][TASKS_PER_WORKER])
        )
        assert self._loader_spec is not None
        return describe_sample(self._loader_spec.dataset, index)

    def finish(self) -> None:
        """Forget what is under way: the iteration is over, or was left."""
        # Where every order was delivered, the workers wait for the next.
        self._clean = self._dispatch.settled
        # The script's loader may hang on its dataset or functions; it must not hang on this.
        self._loader_spec = None
        self._remote_tasks.finish()

    @property
    def usable(self) -> bool:
        """Whether it can begin an iteration: its forkserver lives and is this process's own."""
        return self._worker_pool.usable

    def close(self) -> None:
        """End all workers and free all memory that no batch uses."""
        self._remote_tasks.close()
        self._worker_pool.close()
        self._slots.close()


def describe_exit(status: int) -> str:
    """Return how a process ended, by what its parent heard."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
