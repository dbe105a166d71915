"""The forkserver: a small process that imports what workers need and forks them; the workers.

The training process is never forked: it has threads, an accelerator, object-store clients. The
forkserver is started fresh, receives the loader spec, imports its modules once, and forks each
worker in milliseconds; the workers share its memory. A worker that dies is forked again. It takes
tasks, makes their batches and answers until the loader ends.

The forkserver ends when the loader's end of its control connection closes, however the loader
ended; the kernel ends the workers with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from headrace.core.loader_hooks import LOADER_HOOKS
from headrace.core.process.parent_death import die_with_parent, ignore_group_signals
from headrace.data.loader.batch_builder import (
    BatchBuilder,
    BatchSpec,
    IterableExhausted,
    LoaderSpec,
)
from headrace.data.loader.failures import BatchFailure, sample_at
from headrace.data.loader.library_state import (
    apply_library_settings,
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
from headrace.data.storage import declare_leaf

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
            for place in range(TASKS_PER_WORKER):
                task = self._tasks[place][0].number if place < len(self._tasks) else NO_TASK
                self._status_row[place] = task

    def _prepare(self) -> None:
        """Run the user's worker_init_fn; where it fails, each task is answered with its error."""
        self._init_error: BaseException | None = None
        if self._loader_spec.worker_init_fn is None:
            return
        try:
            self._loader_spec.worker_init_fn(self._number)
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
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
        except BaseException as error:  # noqa: BLE001 - the user's code may raise SystemExit, too
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

    def _failure(self, error: BaseException, spec: BatchSpec | Exception) -> bytes:
        indices = spec.indices if isinstance(spec, BatchSpec) else ()
        index = sample_at(indices, int(self._status_row[TASKS_PER_WORKER]))
        return BatchFailure.of(error, self._loader_spec.dataset, index).to_bytes()

    def _note_progress(self, samples_done: int) -> None:
        self._status_row[TASKS_PER_WORKER] = samples_done
        self._prefetch_next_task()


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


class Forkserver:
    """The forkserver of one loader.

    Requests are tuples: ("load", pickled loader spec, working folder), ("fork", worker number),
    ("end workers",). Reports are tuples: ("imported",), ("ready",), ("failed", failure bytes),
    ("died", worker number, exit status), ("ended workers",).
    """

    def __init__(self, control: Connection, descriptors: WorkerDescriptors) -> None:
        self._control = control
        self._descriptors = descriptors
        self._loader_spec: LoaderSpec | None = None
        self._workers: dict[int, int] = {}  # process id -> worker number
        self._wakeup, wakeup_sender = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_sender, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Answer requests until the loader has ended."""
        while True:
            for ready in wait([self._control, self._wakeup]):
                if ready is self._control:
                    self._answer(self._control.recv())
                else:
                    os.read(self._wakeup, 4096)
                    self._report_deaths()

    def _answer(self, request: tuple[Any, ...]) -> None:
        match request:
            case ("load", content, folder):
                self._load(content, folder)
            case ("fork", number):
                self._fork(number)
            case _:
                self._end_workers()
                self._control.send(("ended workers",))

    def _load(self, content: bytes, folder: str) -> None:
        self._loader_spec = None
        try:
            os.chdir(folder)
            self._loader_spec = unpickle(content)
            apply_library_settings(self._loader_spec.switches)
            if self._loader_spec.iterable:
                importlib.import_module("torch.utils.data")  # workers have its `WorkerInfo`
            if not self._loader_spec.draws_only_in_samples:
                importlib.import_module("numpy.random")  # so that its generator is seeded in time
        except BaseException as error:  # noqa: BLE001 - importing user code may raise anything
            self._control.send(("failed", BatchFailure.of(error).to_bytes()))
            return
        gc.collect()
        gc.freeze()  # the collector would otherwise write to, and so copy, what workers share
        self._control.send(("ready",))

    def _fork(self, number: int) -> None:
        server = os.getpid()
        child = os.fork()
        if child:
            self._workers[child] = number
            return
        status = 1
        try:
            die_with_parent(server)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            assert self._loader_spec is not None  # it comes before the first fork request
            run_worker(number, self._descriptors, self._loader_spec)
            status = 0
        except BaseException:  # noqa: BLE001 - a forked child must not return into the server
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _report_deaths(self) -> None:
        with contextlib.suppress(ChildProcessError):  # there are no children
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                number = self._workers.pop(ended[0], None)
                if number is not None:
                    self._control.send(("died", number, os.waitstatus_to_exitcode(ended[1])))

    def _end_workers(self) -> None:
        for process_id in self._workers:
            os.kill(process_id, signal.SIGKILL)
        for process_id in list(self._workers):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process_id, 0)
        self._workers.clear()


def main(control_descriptor: int, descriptors: Sequence[Any], modules: list[str]) -> None:
    """Serve the loader at the other end of a control connection, then exit.

    `descriptors` are the fields of `WorkerDescriptors`. `modules` are imported at once; a failure
    is reported when the loader spec needs one.
    """
    ignore_group_signals()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # workers are ended by SIGKILL
    control = Connection(control_descriptor)
    for module in modules:
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(module)
    # When the loader has ended, the kernel ends the workers as this process ends.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        control.send(("imported",))
        Forkserver(control, WorkerDescriptors(*descriptors)).serve()
