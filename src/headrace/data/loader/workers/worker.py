"""A worker process, which takes tasks, makes their batches and answers until the loader ends."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections import deque

from headrace.core.loader_hooks import LOADER_HOOKS
from headrace.core.process.parent_death import ignore_group_signals
from headrace.data.loader.batch_builder import (
    BatchBuilder,
    BatchSpec,
    IterableExhausted,
    LoaderSpec,
)
from headrace.data.loader.failures import BatchFailure, sample_at
from headrace.data.loader.library_state import (
    seed_generators,
    seed_like_torch_worker,
    set_worker_info,
)
from headrace.data.loader.serialization import unpickle
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

_FIRST_BATCH_WAIT_S = 2.0  # the first batch's worker may have died, or wait for a slow read


class Worker:
    """The state and main loop of one worker process."""

    def __init__(
        self, number: int, descriptors: WorkerDescriptors, loader_spec: LoaderSpec
    ) -> None:
        self._number = number
        self._descriptors = descriptors
        self._loader_spec = loader_spec
        self._task_socket = socket.socket(
            fileno=os.dup(descriptors.task_sockets[number % len(descriptors.task_sockets)])
        )
        self._answers = socket.socket(fileno=os.dup(descriptors.answers))
        self._status_row = map_status_table(descriptors.status_table, descriptors.workers)[number]
        self._first_batch_event = FirstBatchEvent(descriptors.first_batch_event)
        self._slots = descriptors.slots
        self._tasks: deque[tuple[TaskMessage, BatchSpec | Exception]] = deque()
        self._builder = BatchBuilder(loader_spec, self._note_progress)

    def run(self) -> None:
        """Work until the loader closes its end."""
        observer = LOADER_HOOKS.batches
        with contextlib.nullcontext() if observer is None else observer.working(self._number):
            self._serve()

    def _serve(self) -> None:
        self._status_row[:] = NO_TASK
        use_one_thread()
        loader_spec = self._loader_spec
        set_worker_info(
            self._number,
            self._descriptors.workers,
            loader_spec.worker_seed(self._number),
            loader_spec.dataset,
            iterable=loader_spec.iterable,
        )
        self._prepare()
        while True:
            if not self._tasks and not self._take(wait=True):
                return
            self._work(*self._tasks[0])
            self._tasks.popleft()
            self._note_assigned()

    def _prepare(self) -> None:
        """Run the user's worker_init_fn; where it fails, each task is answered with its error."""
        self._init_error: Exception | None = None
        if self._loader_spec.worker_init_fn is None:
            return
        try:
            self._loader_spec.worker_init_fn(self._number)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            self._init_error = error

    def _prefetch_next_task(self) -> None:
        """Take another task and start its reads, once those of the current batch have arrived."""
        task, spec = self._tasks[0]
        if (
            self._builder.prefetches
            and isinstance(spec, BatchSpec)
            and self._builder.may_prefetch_batch(spec)
        ):
            if task.is_first_batch:
                self._first_batch_event.open()
            elif len(self._tasks) < TASKS_PER_WORKER and self._first_batch_event.wait(0):
                self._take(wait=False)

    def _take(self, *, wait: bool) -> bool:
        packed = b""
        with contextlib.suppress(BlockingIOError):
            packed = self._task_socket.recv(64, 0 if wait else socket.MSG_DONTWAIT)
        if not packed:
            return False
        task = TaskMessage.unpack(packed)
        # Before anything else, so that the task is not lost if this worker is killed.
        self._status_row[len(self._tasks)] = task.number
        payload = read_at(self._slots[task.slot], 0, task.payload_bytes)
        try:
            spec: BatchSpec | Exception = unpickle(payload)
        except Exception as error:  # noqa: BLE001 - a sampler's keys may raise anything
            spec = error
        self._tasks.append((task, spec))
        if self._builder.prefetches and isinstance(spec, BatchSpec):
            if not (task.is_first_batch or self._first_batch_event.wait(_FIRST_BATCH_WAIT_S)):
                self._first_batch_event.open()  # for all workers: none waits as long again
            with contextlib.suppress(Exception):  # making the batch raises it again
                self._builder.prefetch_batch(spec)
        return True

    def _work(self, task: TaskMessage, spec: BatchSpec | Exception) -> None:
        self._note_progress(0)
        arena = SlotArena(self._slots[task.slot])
        try:
            content, answer = self._made(spec, arena), Answer.MADE
        except IterableExhausted:
            content, answer = b"", Answer.EXHAUSTED
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            content, answer = self._failure(error, spec), Answer.FAILED
        if task.is_first_batch:
            self._first_batch_event.open()
        offset = arena.reserve(len(content))
        arena.write(offset, 0, content)
        self._answers.send(
            AnswerMessage(answer, self._number, task.number, task.slot, offset, len(content)).pack()
        )

    def _made(self, spec: BatchSpec | Exception, arena: SlotArena) -> bytes:
        if isinstance(spec, Exception):
            raise spec
        if self._init_error is not None:
            raise self._init_error
        return self._builder.make(spec, arena)

    def _failure(self, error: Exception, spec: BatchSpec | Exception) -> bytes:
        indices = spec.indices if isinstance(spec, BatchSpec) else ()
        index = sample_at(indices, int(self._status_row[TASKS_PER_WORKER]))
        return BatchFailure.of(error, self._loader_spec.dataset, index).to_bytes()

    def _note_progress(self, samples_done: int) -> None:
        self._status_row[TASKS_PER_WORKER] = samples_done
        self._prefetch_next_task()

    def _note_assigned(self) -> None:
        for place in range(TASKS_PER_WORKER):
            task = self._tasks[place][0].number if place < len(self._tasks) else NO_TASK
            self._status_row[place] = task


def run_worker(number: int, descriptors: WorkerDescriptors, loader_spec: LoaderSpec) -> None:
    """Run worker `number` in this forked process."""
    ignore_group_signals()
    declare_leaf()  # no worker forks: it may call object stores itself
    if loader_spec.torch_seed is None:
        seed_generators(loader_spec.worker_seed(number))
    else:
        seed_like_torch_worker(loader_spec.torch_seed, number)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the loader has ended
        Worker(number, descriptors, loader_spec).run()


def use_one_thread() -> None:
    """Keep imported libraries from starting threads of their own: there are many workers."""
    torch, cv2 = sys.modules.get("torch"), sys.modules.get("cv2")
    if torch is not None:
        torch.set_num_threads(1)
    if cv2 is not None:
        cv2.setNumThreads(0)
