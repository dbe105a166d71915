"""The worker pool: forkserver and workers, as the training process starts, feeds and ends them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import pickle
import select
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from headrace.core import env
from headrace.core.errors import NotSendableError
from headrace.data.loader.batch_builder import LoaderSpec, PickledLoaderSpec
from headrace.data.loader.failures import BatchFailure
from headrace.data.loader.workers.child_process import ChildProcess
from headrace.data.loader.workers.messages import (
    NO_TASK,
    TASKS_PER_WORKER,
    AnswerMessage,
    FirstBatchEvent,
    TaskMessage,
    WorkerDescriptors,
    map_status_table,
    new_status_table,
    socket_pair,
)

_START_DEADLINE_S = 120.0
_MAY_LAST = (
    "It imports the modules that dataset and transforms are defined in: look for slow work at "
    "import time."
)
_WORKER_ENVIRONMENT = {
    # One thread each: workers are as many as there are cores, and pools of threads cost memory.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Keep the memory of decoded images for the next one. By default glibc gives blocks over 128 KiB
    # back to the kernel at once, and every image pays for fresh, zeroed pages again (mallopt(3)).
    "MALLOC_MMAP_THRESHOLD_": str(1 << 28),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 28),
}


class WorkerPool:
    """The worker processes of one loader, and the channels to them.

    Args:
        count: How many workers, or where not all begin at the start: the most there may be.
        slot_descriptors: The slots' files.
        rank: The rank they work for, for messages.
        queues: Ticket sockets: 1, or one a worker.
        modules: What the recipe will need; imported at once, while the script does other things.
        path: Where workers look for modules; by default where this process does.
        variables: Of workers, beside this process's or in their place, None where they have none;
            by default its own.
        beginning: How many workers begin at the start, by default all; others as `need` asks.

    Attributes:
        count: How many workers there are, or may be.
        answers: Sending end of the answer socket, for others who answer as workers do.
        status_table: int64[workers, 3]: the tickets that each worker holds and its progress.
    """

    def __init__(
        self,
        count: int,
        slot_descriptors: list[int],
        *,
        rank: int,
        queues: int,
        modules: Sequence[str] = (),
        path: Sequence[str] | None = None,
        variables: Mapping[str, str | None] | None = None,
        beginning: int | None = None,
    ) -> None:
        self.count = count
        self._beginning = count if beginning is None else beginning
        self._forked: set[int] = set()
        self._rank = rank
        self._sent_spec_digest = b""  # its digest
        self._running = False
        self._imported = False
        self._tickets = [socket_pair() for _ in range(queues)]
        self.answers, self._answers = socket_pair()
        self._answers.setblocking(False)
        self._unsent: list[deque[bytes]] = [deque() for _ in range(queues)]
        self._status_file = os.fdopen(new_status_table(count), "r+b", buffering=0)
        self.status_table: NDArray[np.int64] = map_status_table(self._status_file.fileno(), count)
        self._first_batch_event = FirstBatchEvent.new()
        self._ends = WorkerDescriptors(
            tickets=[receiver.fileno() for _, receiver in self._tickets],
            answers=self.answers.fileno(),
            status_table=self._status_file.fileno(),
            gate=self._first_batch_event.fileno(),
            slots=slot_descriptors,
            workers=count,
        )
        self._modules, self._path = list(modules), path
        self._server = self._new_server(env.own_variables() if variables is None else variables)

    def _new_server(self, variables: Mapping[str, str | None]) -> ChildProcess:
        self._variables = dict(variables)
        return ChildProcess(
            f"rank {self._rank}: the workers' forkserver",
            "headrace.data.loader.workers.forkserver:main",
            [self._ends.to_json(), self._modules],
            descriptors=self._ends.descriptors(),
            # The user's word holds.
            environment=_WORKER_ENVIRONMENT
            | env.child_environment({**env.CLEARED_IN_CHILDREN, **variables}),
            path=self._path,
        )

    def start(self, recipe: PickledLoaderSpec) -> None:
        """Have all workers run with a recipe; workers that already do are kept.

        With other variables the forkserver begins anew, as one on a host that joins just now does.

        Raises:
            LoaderError: The recipe cannot be unpickled over there.
        """
        self._first_batch_event.shut()
        if recipe.variables != self._variables:
            self._begin_anew(recipe.variables)
        content, folder = recipe.content, recipe.folder
        digest = hashlib.blake2b(content + folder.encode()).digest()
        if self._running and digest == self._sent_spec_digest:
            return
        self.end_workers()
        if digest != self._sent_spec_digest:
            if not self._imported:  # before that it would not read what is sent
                self._report()
                self._imported = True
            self._request("recipe", content, folder)
            report = self._report()
            if report[0] == "failed":
                failure = BatchFailure.from_bytes(report[1])
                raise failure.in_caller(f"rank {self._rank}, starting workers")
            self._sent_spec_digest = digest
        self.start_workers()

    def _begin_anew(self, variables: Mapping[str, str | None]) -> None:
        """Have another forkserver: modules read variables as they are imported."""
        self.end_workers()
        self._server.end()
        self._server = self._new_server(variables)
        self._sent_spec_digest, self._imported = b"", False

    def start_workers(self) -> None:
        """Fork all workers that begin at the start; none runs."""
        self._running = True
        for number in range(self._beginning):
            self.fork(number)

    def need(self, number: int) -> None:
        """Start worker `number` where it has not begun."""
        if number not in self._forked:
            self.fork(number)

    def fork(self, number: int) -> None:
        """Start worker `number` (again)."""
        self._forked.add(number)
        self.status_table[number] = NO_TASK
        self._request("fork", number)

    def send(self, ticket: TaskMessage, queue: int) -> None:
        """Hand a ticket to whoever reads that queue."""
        self._unsent[queue].append(ticket.pack())
        self._pump()

    def _pump(self) -> None:
        """Send what the sockets have room for; a blocking send could wait for ever."""
        for (sender, _), unsent in zip(self._tickets, self._unsent, strict=True):
            with contextlib.suppress(BlockingIOError):
                while unsent:
                    sender.send(unsent[0], socket.MSG_DONTWAIT)
                    unsent.popleft()

    def wait(
        self, timeout_s: float, also: Sequence[int] = ()
    ) -> tuple[list[AnswerMessage], list[tuple[int, int]]]:
        """Wait for news.

        Args:
            timeout_s: Longest wait, in seconds.
            also: Descriptors that end the wait, too, once they can be read.

        Returns:
            Answers, and (worker, exit status) of workers that died; both empty after the timeout.
        """
        self._pump()
        control = self._server.control
        wait_readable([self._answers.fileno(), control.fileno(), *also], timeout_s)
        deaths: list[tuple[int, int]] = []
        while control.poll(0):
            report = self._report()
            deaths.append((report[1], report[2]))
        # Answers last: what a worker said before it died must be read with its death.
        return self._read_answers(), deaths

    def assigned_tasks(self) -> dict[int, set[int]]:
        """Return, by worker, the numbers of the tickets that it holds."""
        return {
            worker: {int(number) for number in row[:TASKS_PER_WORKER] if number != NO_TASK}
            for worker, row in enumerate(self.status_table)
        }

    def none_waiting(self) -> bool:
        """Whether no ticket waits to be taken."""
        receivers = [receiver.fileno() for _, receiver in self._tickets]
        return not any(self._unsent) and not wait_readable(receivers, 0)

    def end_workers(self) -> None:
        """End all workers and throw away tickets and answers that are under way."""
        if not self._running:
            return
        self._running = False
        self._forked.clear()
        self._request("end workers")
        while self._report()[0] != "ended workers":
            pass  # a death reported before the answer: all are ended now anyway
        for _, receiver in self._tickets:
            _drain(receiver)
        self.forget_answers()
        for unsent in self._unsent:
            unsent.clear()
        self.status_table[:] = NO_TASK

    def forget_answers(self) -> None:
        """Throw away the answers that nobody has read."""
        _drain(self._answers)

    @property
    def usable(self) -> bool:
        """Whether the forkserver lives and was started by this process, not by its parent."""
        return self._server.lives

    def close(self) -> None:
        """End the workers and the forkserver."""
        if not self._server.is_own:
            return  # a forked child of the training process: the workers are not its own
        for sender, receiver in self._tickets:
            sender.close()
            receiver.close()
        self.answers.close()
        self._answers.close()
        self._first_batch_event.close()
        self._status_file.close()
        self._server.close()

    def _request(self, *request: Any) -> None:
        self._server.request(*request)

    def _report(self) -> tuple[Any, ...]:
        return self._server.report(_START_DEADLINE_S, _MAY_LAST)

    def _read_answers(self) -> list[AnswerMessage]:
        answers: list[AnswerMessage] = []
        while True:
            try:
                message = self._answers.recv(64)
            except BlockingIOError:
                return answers
            if not message:  # every sender is gone; the forkserver's end tells of it
                return answers
            answers.append(AnswerMessage.unpack(message))


def pickle_loader_spec(recipe: LoaderSpec) -> PickledLoaderSpec:
    """Return a recipe as it is sent now; raises NotSendableError, naming the part."""
    folder, variables = str(Path.cwd()), env.own_variables()
    try:
        return PickledLoaderSpec(content=_on_the_host(recipe), folder=folder, variables=variables)
    except Exception as error:
        raise NotSendableError(
            f"The dataset, its transform or collate_fn cannot be sent to worker processes: "
            f"{_unpicklable_part(recipe)} ({type(error).__name__}: {error}). Open files, "
            f"connections and locks lazily, in the worker, or use num_workers=0."
        ) from error


class _HostPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles what workers can have: they are forked, and no device outlives that."""

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor) and obj.device.type != "cpu":
            raise pickle.PicklingError(f"it holds a tensor on {obj.device}")
        if isinstance(obj, functools._lru_cache_wrapper) and obj.__module__ == "__main__":  # noqa: SLF001
            # It says that it is found by its name, and the script is `__main__` here alone.
            kept = obj.cache_parameters()
            return _cached, (obj.__wrapped__, kept["maxsize"], kept["typed"])
        return super().reducer_override(obj)


def _cached(function: Callable[..., Any], most: int | None, typed: bool) -> Any:  # noqa: FBT001
    return functools.lru_cache(most, typed)(function)


def _on_the_host(value: object) -> bytes:
    buffer = io.BytesIO()
    _HostPickler(buffer).dump(value)
    return buffer.getvalue()


def _unpicklable_part(recipe: LoaderSpec) -> str:
    parts = {"collate_fn": recipe.collate_fn, "worker_init_fn": recipe.worker_init_fn}
    attributes = getattr(recipe.dataset, "__dict__", {})
    parts |= {f"dataset.{name}": value for name, value in attributes.items()}
    for name, value in parts.items():
        try:
            _on_the_host(value)
        except Exception:  # noqa: BLE001 - whatever it raises, this is the part that fails
            return f"{name} is a {type(value).__name__}"
    return f"dataset is a {type(recipe.dataset).__name__}"


def _drain(receiver: socket.socket) -> None:
    try:
        while receiver.recv(64, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        pass


def wait_readable(descriptors: list[int], timeout_s: float) -> bool:
    """Wait until one can be read. poll: select fails for descriptors of 1024 and above."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))
