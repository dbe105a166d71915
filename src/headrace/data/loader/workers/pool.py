"""The worker pool: the forkserver and its workers, as the training process controls them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import pickle
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from headrace.core import env
from headrace.core.errors import NotSendableError
from headrace.data.loader.batch_builder import LoaderSpec, PickledLoaderSpec
from headrace.data.loader.dataset_protocol import NativeDataset
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
    send_unsent,
    socket_pair,
    wait_readable,
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
    """The worker processes of one loader, and their sockets and shared memory.

    Args:
        count: Number of workers; where not all start at once, the most there may be.
        queues: Number of task sockets: 1, or one a worker.
        modules: Modules of the loader spec, imported at once while the script does other things.
        path: The workers' `sys.path`; by default this process's.
        variables: Environment variables of workers that differ from this process's, None where
            unset; by default its own.
        beginning: Number of workers that start at once, by default all; others when needed.

    Attributes:
        answers: Sending end of the answer socket, for others who answer as workers do.
        status_table: int64[workers, 3]: each worker's task numbers and progress.
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
        self._beginning = count if beginning is None else beginning
        self._forked: set[int] = set()
        self._rank = rank
        self._sent_spec_digest = b""
        self._running = False
        self._imported = False
        self._task_sockets = [socket_pair() for _ in range(queues)]
        self.answers, self._answers = socket_pair()
        self._answers.setblocking(False)
        self._unsent: list[deque[bytes]] = [deque() for _ in range(queues)]
        self._status_file = os.fdopen(new_status_table(count), "r+b", buffering=0)
        self.status_table: NDArray[np.int64] = map_status_table(self._status_file.fileno(), count)
        self._first_batch_event = FirstBatchEvent.new()
        self._descriptors = WorkerDescriptors(
            task_sockets=[receiver.fileno() for _, receiver in self._task_sockets],
            answers=self.answers.fileno(),
            status_table=self._status_file.fileno(),
            first_batch_event=self._first_batch_event.fileno(),
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
            [tuple(self._descriptors), self._modules],
            descriptors=self._descriptors.descriptors(),
            # Variables that the user has set take precedence.
            environment=_WORKER_ENVIRONMENT
            | env.child_environment({**env.CLEARED_IN_CHILDREN, **variables}),
            path=self._path,
        )

    def start(self, loader_spec: PickledLoaderSpec) -> None:
        """Start all workers with a loader spec; workers that already have it go on.

        With other variables the forkserver is replaced, like the one of a host that joins later.
        Raises LoaderError where the loader spec cannot be unpickled in the forkserver.
        """
        self._first_batch_event.shut()
        if loader_spec.variables != self._variables:  # modules read them as they are imported
            self.end_workers()
            self._server.end()
            self._server = self._new_server(loader_spec.variables)
            self._sent_spec_digest, self._imported = b"", False
        content, folder = loader_spec.content, loader_spec.folder
        digest = hashlib.blake2b(content + folder.encode()).digest()
        if self._running and digest == self._sent_spec_digest:
            return
        self.end_workers()
        if digest != self._sent_spec_digest:
            if not self._imported:  # before that it reads no requests
                self._report()
                self._imported = True
            self._server.request("load", content, folder)
            report = self._report()
            if report[0] == "failed":
                failure = BatchFailure.from_bytes(report[1])
                raise failure.in_caller(f"rank {self._rank}, starting workers")
            self._sent_spec_digest = digest
        self.start_workers()

    def start_workers(self) -> None:
        """Fork all workers that start at once; none runs."""
        self._running = True
        for number in range(self._beginning):
            self.fork(number)

    def need(self, number: int) -> None:
        """Start worker `number` where it has not started."""
        if number not in self._forked:
            self.fork(number)

    def fork(self, number: int) -> None:
        """Start worker `number`, again if it died."""
        self._forked.add(number)
        self.status_table[number] = NO_TASK
        self._server.request("fork", number)

    def send(self, task: TaskMessage, queue: int) -> None:
        """Send a task to the workers of a queue."""
        self._unsent[queue].append(task.pack())
        self._pump()

    def _pump(self) -> None:
        for (sender, _), unsent in zip(self._task_sockets, self._unsent, strict=True):
            send_unsent(sender, unsent)

    def wait(
        self, timeout_s: float, also: Sequence[int] = ()
    ) -> tuple[list[AnswerMessage], list[tuple[int, int]]]:
        """Wait for answers or deaths, or until one of the descriptors in `also` is readable.

        Returns answers, and (worker, exit status) of workers that died; both may be empty.
        """
        self._pump()
        control = self._server.control
        wait_readable([self._answers.fileno(), control.fileno(), *also], timeout_s)
        deaths: list[tuple[int, int]] = []
        while control.poll(0):
            report = self._report()
            deaths.append((report[1], report[2]))
        # Answers last: those that a worker sent before it died must be read with its death.
        return self._read_answers(), deaths

    def assigned_tasks(self) -> dict[int, set[int]]:
        """Return the numbers of the tasks that each worker holds."""
        return {
            worker: {int(number) for number in row[:TASKS_PER_WORKER] if number != NO_TASK}
            for worker, row in enumerate(self.status_table)
        }

    def none_waiting(self) -> bool:
        """Return whether no task waits to be taken."""
        receivers = [receiver.fileno() for _, receiver in self._task_sockets]
        return not any(self._unsent) and not wait_readable(receivers, 0)

    def end_workers(self) -> None:
        """End all workers and drop unread tasks and answers."""
        if not self._running:
            return
        self._running = False
        self._forked.clear()
        self._server.request("end workers")
        while self._report()[0] != "ended workers":
            pass  # a death reported before: all are ended anyway
        for _, receiver in self._task_sockets:
            _drain(receiver)
        self.forget_answers()
        for unsent in self._unsent:
            unsent.clear()
        self.status_table[:] = NO_TASK

    def forget_answers(self) -> None:
        """Drop the answers that nobody has read."""
        _drain(self._answers)

    @property
    def usable(self) -> bool:
        """Whether the forkserver lives and was started by this process, not by its parent."""
        return self._server.lives

    def close(self) -> None:
        """End the workers and the forkserver."""
        if not self._server.is_own:
            return  # a forked child of the training process: the workers are not its own
        for sender, receiver in self._task_sockets:
            sender.close()
            receiver.close()
        self.answers.close()
        self._answers.close()
        self._first_batch_event.close()
        self._status_file.close()
        self._server.close()

    def _report(self) -> tuple[Any, ...]:
        return self._server.report(_START_DEADLINE_S, _MAY_LAST)

    def _read_answers(self) -> list[AnswerMessage]:
        answers: list[AnswerMessage] = []
        with contextlib.suppress(BlockingIOError):
            # It is empty once every sender has closed; the forkserver's end is noticed elsewhere.
            while message := self._answers.recv(64):
                answers.append(AnswerMessage.unpack(message))
        return answers


def pickle_loader_spec(loader_spec: LoaderSpec, *, maps_files: bool = False) -> PickledLoaderSpec:
    """Return a loader spec as it is sent; raises NotSendableError, naming the faulty part.

    `maps_files`: workers map the files that NumPy has mapped; those of other hosts may lack them.
    """
    folder, variables = str(Path.cwd()), env.own_variables()
    try:
        content = _on_the_host(loader_spec, maps_files=maps_files)
        return PickledLoaderSpec(content=content, folder=folder, variables=variables)
    except Exception as error:
        raise NotSendableError(
            f"The dataset, its transform or collate_fn cannot be sent to worker processes: "
            f"{_unpicklable_part(loader_spec)} ({type(error).__name__}: {error}). Open files, "
            f"connections and locks lazily, in the worker, or use num_workers=0."
        ) from error


class _HostPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles for workers, which are forked: device tensors cannot go along."""

    def __init__(self, file: io.BytesIO, *, maps_files: bool) -> None:
        super().__init__(file)
        self._maps_files = maps_files

    @functools.cached_property
    def _mappings(self) -> Sequence[_FileMapping]:
        return _file_mappings()

    def reducer_override(self, obj: Any) -> Any:
        if self._maps_files and type(obj) in {np.memmap, np.ndarray}:
            arguments = _map_arguments(obj, lambda: self._mappings)
            if arguments is not None:
                return map_array, arguments
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor) and obj.device.type != "cpu":
            raise pickle.PicklingError(f"it holds a tensor on {obj.device}")
        if isinstance(obj, functools._lru_cache_wrapper) and obj.__module__ == "__main__":  # noqa: SLF001
            # It pickles by name, and the script is `__main__` in this process alone.
            parameters = obj.cache_parameters()
            return _cached, (obj.__wrapped__, parameters["maxsize"], parameters["typed"])
        return super().reducer_override(obj)


def _cached(function: Callable[..., Any], max_size: int | None, typed: bool) -> Any:  # noqa: FBT001
    return functools.lru_cache(max_size, typed)(function)


def _on_the_host(value: object, *, maps_files: bool = False) -> bytes:
    buffer = io.BytesIO()
    _HostPickler(buffer, maps_files=maps_files).dump(value)
    return buffer.getvalue()


class _FileMapping(NamedTuple):
    """A part of this process's memory that is a file's, shared with all who map it."""

    begin: int  # address
    end: int
    offset: int  # in the file, of `begin`
    path: str  # as the kernel has it: of a file that was deleted or replaced, none that exists


def _file_mappings() -> list[_FileMapping]:
    """Return the shared file mappings of this process; see proc_pid_maps(5)."""
    found = []
    with (
        contextlib.suppress(OSError),
        Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as lines,
    ):
        for line in lines:
            place, access, offset, *rest = line.rstrip("\n").split(maxsplit=5)
            if access.endswith("s") and len(rest) == 3:
                begin, end = (int(address, 16) for address in place.split("-"))
                found.append(_FileMapping(begin, end, int(offset, 16), rest[2]))
    return found


_MapArguments: TypeAlias = tuple[
    str, np.dtype[Any], Literal["r", "r+"], int, tuple[int, ...], Literal["C", "F"], bool
]


def _map_arguments(
    array: NDArray[Any], mappings: Callable[[], Sequence[_FileMapping]]
) -> _MapArguments | None:
    """Return the arguments of `map_array` for a memory map, or a contiguous view of one.

    None: the array is none, is a private copy ("c"), or its file is not at its path any more.
    """
    held: Any = array
    while held is not None and type(held) is not np.memmap:
        held = getattr(held, "base", None)
    if held is None or held.filename is None or held.mode == "c" or not array.size:
        return None
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        return None
    path = os.path.realpath(held.filename)
    begin = array.__array_interface__["data"][0]
    inside = [each for each in mappings() if each.begin <= begin < each.end and each.path == path]
    if not inside or not os.access(path, os.R_OK if held.mode == "r" else os.R_OK | os.W_OK):
        return None
    return (
        path,
        array.dtype,
        "r" if held.mode == "r" else "r+",  # "w+" would empty it
        inside[0].offset + begin - inside[0].begin,
        array.shape,
        "C" if array.flags.c_contiguous else "F",
        type(array) is np.memmap,
    )


def map_array(
    path: str,
    dtype: np.dtype[Any],
    mode: Literal["r", "r+"],
    offset: int,
    shape: tuple[int, ...],
    order: Literal["C", "F"],
    is_memmap: bool,  # noqa: FBT001 - as it is pickled
) -> NDArray[Any]:
    """Return a part of a file, which begins `offset` bytes in it, as an array in shared memory."""
    mapped = np.memmap(path, dtype, mode, offset, shape, order)
    return mapped if is_memmap else np.asarray(mapped)


def _unpicklable_part(loader_spec: LoaderSpec) -> str:
    parts = {"collate_fn": loader_spec.collate_fn, "worker_init_fn": loader_spec.worker_init_fn}
    attributes = getattr(loader_spec.dataset, "__dict__", {})
    parts |= {f"dataset.{name}": value for name, value in attributes.items()}
    for name, value in parts.items():
        try:
            _on_the_host(value)
        except Exception:  # noqa: BLE001 - any error marks this part
            return f"{name} is a {type(value).__name__}"
    return f"dataset is a {type(loader_spec.dataset).__name__}"


def _drain(receiver: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while receiver.recv(64, socket.MSG_DONTWAIT):
            pass


_MOST_OBJECTS = 2000  # inspected, nearest first: a dataset may hold an index of millions
_MOST_ITEMS = 32  # of a list: one of samples is as long as the dataset


def modules_of(dataset: Any, collate_fn: Any) -> list[str]:
    """Return the modules that a dataset, its transforms and collate_fn are defined in or use.

    Objects defined in the script itself are pickled by value, and workers then import the modules
    that their code names. That may take seconds, so it starts when the loader is made.
    """
    modules: set[str] = set(dataset.modules) if isinstance(dataset, NativeDataset) else set()
    seen: dict[int, Any] = {}
    parts = deque([dataset, collate_fn])
    while parts and len(seen) < _MOST_OBJECTS:
        part = parts.popleft()
        if id(part) in seen:
            continue
        seen[id(part)] = part  # held, so that no other object gets its id
        if isinstance(part, ModuleType):
            modules.add(part.__name__)
            continue
        if isinstance(part, type | FunctionType):
            modules.add(part.__module__)
        parts.extend(_parts_of(part))
    return sorted(modules - {"__main__", "builtins"})


def _parts_of(part: Any) -> Iterator[Any]:
    """Yield the objects pickled with an object, as far as they may need modules."""
    if isinstance(part, list | tuple):
        yield from part[:_MOST_ITEMS]
    elif isinstance(part, type):
        if part.__module__ == "__main__":
            yield from part.__bases__
            yield from (value for value in vars(part).values() if isinstance(value, FunctionType))
    elif isinstance(part, FunctionType):
        if part.__module__ == "__main__":
            yield from _globals_named_in(part)
    elif isinstance(part, MethodType):
        yield from (part.__func__, part.__self__)
    elif isinstance(part, functools.partial):
        yield from (part.func, *part.args, *part.keywords.values())
    elif type(part).__module__ != "builtins":
        yield from (type(part), *getattr(part, "__dict__", {}).values())


def _globals_named_in(function: FunctionType) -> Iterator[Any]:
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [value for value in code.co_consts if isinstance(value, CodeType)]
        for name in code.co_names:
            if name in function.__globals__:
                yield function.__globals__[name]
