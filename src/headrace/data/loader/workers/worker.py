"""A worker process, which takes tasks, makes their batches and answers until the loader is gone."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import traceback
from collections import deque

from headrace.core.process.parent_death import ignore_group_signals
from headrace.data.loader.batch_builder import (
    BatchBuilder,
    BatchSpec,
    IterableExhausted,
    LoaderSpec,
)
from headrace.data.loader.failures import BatchFailure, sample_at
from headrace.data.loader.former_names import unpickle
from headrace.data.loader.library_state import (
    seed_generators,
    seed_like_torch_worker,
    set_worker_info,
)
from headrace.data.loader.workers.messages import (
    NO_TASK,
    TASKS_PER_WORKER,
    Answer,
    AnswerMessage,
    FirstBatchEvent,
    TaskMessage,
    WorkerDescriptors,
    map_status_table,
)
from headrace.data.loader.workers.shared_memory import SlotArena, read_at
from headrace.data.storage.remote_store import declare_leaf

_FIRST_BATCH_WAIT_S = 2.0  # whoever makes the first batch may have died, or wait for a slow answer


class Worker:
    """One worker process's side of the channels."""

    def __init__(self, number: int, ends: WorkerDescriptors, recipe: LoaderSpec) -> None:
        self._number = number
        self._ends = ends
        self._loader_spec = recipe
        self._tickets = socket.socket(fileno=os.dup(ends.tickets[number % len(ends.tickets)]))
        self._answers = socket.socket(fileno=os.dup(ends.answers))
        self._status_row = map_status_table(ends.status_table, ends.workers)[number]
        self._first_batch_event = FirstBatchEvent(ends.gate)
        self._slots = ends.slots
        self._held: deque[tuple[TaskMessage, BatchSpec | Exception]] = deque()
        self._maker = BatchBuilder(recipe, self._note_progress)

    def run(self) -> None:
        """Work until the loader closes its end."""
        self._status_row[:] = NO_TASK
        use_one_thread()
        recipe = self._loader_spec
        set_worker_info(
            self._number,
            self._ends.workers,
            recipe.worker_seed(self._number),
            recipe.dataset,
            iterable=recipe.iterable,
        )
        self._prepare()
        while True:
            if not self._held and not self._take(wait=True):
                return
            self._work(*self._held[0])
            self._held.popleft()
            self._note_assigned()

    def _prepare(self) -> None:
        """Run the user's worker_init_fn; where it fails, each ticket is answered with its error."""
        self._unprepared: Exception | None = None
        if self._loader_spec.worker_init_fn is None:
            return
        try:
            self._loader_spec.worker_init_fn(self._number)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything; it is told
            self._unprepared = error

    def _prefetch_next_task(self) -> None:
        """Take another ticket and begin its reads, once those of the batch at work are there."""
        ticket, order = self._held[0]
        if (
            self._maker.prefetches
            and isinstance(order, BatchSpec)
            and self._maker.may_prefetch_batch(order)
        ):
            if ticket.is_first_batch:
                self._first_batch_event.open()
            elif len(self._held) < TASKS_PER_WORKER and self._first_batch_event.wait(0):
                self._take(wait=False)

    def _take(self, *, wait: bool) -> bool:
        try:
            message = self._tickets.recv(64, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        if not message:
            return False
        ticket = TaskMessage.unpack(message)
        # First of all say who has it: should this worker be killed, the ticket is not lost.
        self._status_row[len(self._held)] = ticket.number
        payload = read_at(self._slots[ticket.slot], 0, ticket.payload_bytes)
        try:
            order: BatchSpec | Exception = unpickle(payload)
        except Exception as error:  # noqa: BLE001 - a sampler's keys may raise anything; it is told
            order = error
        self._held.append((ticket, order))
        if self._maker.prefetches and isinstance(order, BatchSpec):
            if not (ticket.is_first_batch or self._first_batch_event.wait(_FIRST_BATCH_WAIT_S)):
                self._first_batch_event.open()  # for all: nobody else is to wait as long again
            with contextlib.suppress(Exception):  # whatever it is, making the batch tells
                self._maker.prefetch_batch(order)
        return True

    def _work(self, ticket: TaskMessage, order: BatchSpec | Exception) -> None:
        self._note_progress(0)
        arena = SlotArena(self._slots[ticket.slot])
        try:
            content, answer = self._made(order, arena), Answer.MADE
        except IterableExhausted:
            content, answer = b"", Answer.EXHAUSTED
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything; it is told
            content, answer = self._failure(error, order), Answer.FAILED
        if ticket.is_first_batch:
            self._first_batch_event.open()
        offset = arena.reserve(len(content))
        arena.write(offset, 0, content)
        self._answers.send(
            AnswerMessage(
                answer, self._number, ticket.number, ticket.slot, offset, len(content)
            ).pack()
        )

    def _made(self, order: BatchSpec | Exception, arena: SlotArena) -> bytes:
        if isinstance(order, Exception):
            raise order
        if self._unprepared is not None:
            raise self._unprepared
        return self._maker.make(order, arena)

    def _failure(self, error: Exception, order: BatchSpec | Exception) -> bytes:
        indices = order.indices if isinstance(order, BatchSpec) else ()
        index = sample_at(indices, int(self._status_row[TASKS_PER_WORKER]))
        return BatchFailure.of(
            error, traceback.format_exc(), self._loader_spec.dataset, index
        ).to_bytes()

    def _note_progress(self, samples_done: int) -> None:
        self._status_row[TASKS_PER_WORKER] = samples_done
        self._prefetch_next_task()

    def _note_assigned(self) -> None:
        for place in range(TASKS_PER_WORKER):
            ticket = self._held[place][0].number if place < len(self._held) else NO_TASK
            self._status_row[place] = ticket


def run_worker(number: int, ends: WorkerDescriptors, recipe: LoaderSpec) -> None:
    """Run worker `number` in this forked process."""
    ignore_group_signals()
    declare_leaf()  # no worker forks: it may call object stores itself
    if recipe.torch_seed is None:
        seed_generators(recipe.worker_seed(number))
    else:
        seed_like_torch_worker(recipe.torch_seed, number)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the loader is gone
        Worker(number, ends, recipe).run()


def use_one_thread() -> None:
    """Keep libraries that are loaded from starting threads of their own: workers are many."""
    torch, cv2 = sys.modules.get("torch"), sys.modules.get("cv2")
    if torch is not None:
        torch.set_num_threads(1)
    if cv2 is not None:
        cv2.setNumThreads(0)
