"""The protocols of executors and remote workers, idle executors, and the one without workers."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from headrace.data.loader.batch_builder import (
    BatchBuilder,
    BatchSpec,
    IterableExhausted,
    LoaderSpec,
    PickledLoaderSpec,
)
from headrace.data.loader.failures import BatchFailure, sample_at
from headrace.data.loader.library_state import (
    generator_states,
    preserve_generators,
    seed_generators,
    set_generator_states,
)
from headrace.data.loader.serialization import decode_batch
from headrace.data.loader.workers.messages import TaskMessage
from headrace.data.loader.workers.shared_memory import PlainArena


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltBatch:
    """A made batch, or the end of a worker's partition of an iterable dataset."""

    batch: int  # its number in the iteration
    content: Any = None
    bad: tuple[Mapping[str, Any], ...] = ()  # quarantine records of the bad samples met
    samples: int = 0
    exhausted: bool = False  # the worker has no more batches


class Executor(Protocol):
    """Makes batches for one iteration at a time and returns them in order."""

    workers: int

    @property
    def usable(self) -> bool:
        """Whether it can begin an iteration in this process."""

    def start(self, loader_spec: LoaderSpec) -> None:
        """Prepare for an iteration; raises LoaderError where the loader spec cannot be sent."""

    def has_room(self) -> bool:
        """Return whether another batch spec can be submitted now."""

    def submit(self, spec: BatchSpec) -> None:
        """Take the spec of the next batch; only when there is room."""

    def next_made(self, timeout_s: float, on_room: Callable[[], None]) -> BuiltBatch:
        """Return the next batch in order; `on_room` is called when there is room for more specs.

        Raises LoaderTimeoutError after `timeout_s` seconds, and WorkerError for the user's code.
        """

    def finish(self) -> None:
        """Drop unfinished batches: the iteration has ended or was abandoned."""

    def close(self) -> None:
        """End all workers and free all memory that no batch uses."""


class RemoteWorkers(Protocol):
    """Makes batches for an executor on other hosts, in the same slots as its own workers.

    It answers where workers do: with their answers, with RETURNED for a task that others must do,
    and with ROOM whenever the number of tasks that it can take changes.
    """

    max_open_tasks: int  # ever
    most_bytes: int  # that prefetched batches may take
    partitions: int  # of an iterable dataset, which it iterates

    def connect(self, slots: Sequence[int], answers: int) -> None:
        """Attach to the executor, once and first: the slots' files, and the socket for answers."""

    @property
    def lives(self) -> bool:
        """Whether it can still make batches."""

    def start(self, loader_spec: PickledLoaderSpec, partitions: range) -> None:
        """Make batches of a loader from now on; restarts it where it has ended.

        `partitions` are those of an iterable dataset that it iterates from the start, out of
        `partitions.stop` in all; `range(0)` for a map-style dataset.
        """

    def send(self, task: TaskMessage, partition: int) -> None:
        """Take a task; `partition` matters for an iterable dataset."""

    def reclaim_partition(self, partition: int) -> None:
        """Return all tasks of a partition, now and later: a worker here will iterate it."""

    def note_answer(self) -> None:
        """Note that one more answer for a task was taken in; for its records."""

    def discard(self, number: int) -> None:
        """Note that the batch just taken in was not needed any more; for its records."""

    def finish(self) -> None:
        """Note that the iteration has ended, or was abandoned."""

    def forget(self) -> bool:
        """Drop all tasks; return whether it lives. Nobody writes to a slot or answers for one."""

    def report_failure(self, failure: BatchFailure, worker: int) -> None:
        """Note that one of its workers failed in a batch that could be made here."""

    def close(self) -> None:
        """End everything that works for it."""


_CLAIMS: WeakKeyDictionary[Executor, object] = WeakKeyDictionary()


def claim_executor(executor: Executor) -> Callable[[], bool]:
    """Claim an executor; return a function that tells whether another iteration claimed it."""
    claim = _CLAIMS[executor] = object()
    # When all of it is collected together, the entry may be removed first.
    return lambda: _CLAIMS.get(executor, claim) is not claim


class IdleExecutors:
    """The executor that a loader keeps between its iterations, closed as the loader dies."""

    def __init__(self, loader: object) -> None:
        self.executors: list[Executor] = []
        self._closer = weakref.finalize(loader, _close_all, self.executors)

    def start(self, new: Callable[[], Executor], loader_spec: LoaderSpec) -> Executor:
        """Start an iteration with a kept executor, or a new one; return it."""
        executor = self._take() or new()
        try:
            executor.start(loader_spec)
        except BaseException:
            executor.close()
            raise
        return executor

    def _take(self) -> Executor | None:
        while self.executors:
            executor = self.executors.pop()
            if executor.usable:
                return executor
            executor.close()  # its forkserver was killed, or it belongs to the parent process
        return None

    def give_back(self, executor: Executor) -> None:
        """Keep an executor that ends its iteration, or close it where it is not needed."""
        executor.finish()
        if self.executors or not self._closer.alive:
            executor.close()
        else:
            self.executors.append(executor)


def _close_all(executors: list[Executor]) -> None:
    for executor in executors:
        executor.close()


class SingleBatchExecutor:
    """The base of executors without workers of ours, which take one batch spec at a time."""

    workers = 0

    def __init__(self) -> None:
        self._batch_specs: deque[BatchSpec] = deque()
        self._next_batch = 0

    def start(self, loader_spec: LoaderSpec) -> None:
        """Prepare for an iteration."""
        self._loader_spec = loader_spec
        self._batch_specs.clear()
        self._next_batch = 0

    def has_room(self) -> bool:
        """Return whether another batch spec can be submitted now."""
        return not self._batch_specs

    def submit(self, spec: BatchSpec) -> None:
        """Take the spec of the next batch."""
        self._batch_specs.append(spec)

    def finish(self) -> None:
        """Drop unfinished batches."""
        self._batch_specs.clear()


class InlineExecutor(SingleBatchExecutor):
    """`num_workers=0`: no process, no prefetching; the model's random generators are preserved."""

    usable = True

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank

    def start(self, loader_spec: LoaderSpec) -> None:
        """Prepare for an iteration."""
        super().start(loader_spec)
        self._done = 0
        self._builder = BatchBuilder(loader_spec, self._note_progress)
        with preserve_generators():
            seed_generators(loader_spec.worker_seed(0))
            self._states = generator_states()  # an iterable dataset continues with these

    def next_made(
        self,
        timeout_s: float,  # noqa: ARG002 - inline work waits for nobody
        on_room: Callable[[], None],  # noqa: ARG002
    ) -> BuiltBatch:
        """Make and return the next batch; raises as in `Executor`."""
        spec = self._batch_specs.popleft()
        arena = PlainArena()
        batch = self._next_batch
        self._next_batch += 1
        try:
            with preserve_generators():
                set_generator_states(self._states)
                structure = self._builder.make(spec, arena)
                if self._loader_spec.iterable:
                    self._states = generator_states()
        except IterableExhausted:
            return BuiltBatch(batch=batch, exhausted=True)
        except Exception as error:
            index = sample_at(spec.indices, self._done)
            failure = BatchFailure.of(error, self._loader_spec.dataset, index)
            raise failure.in_caller(f"rank {self._rank}, inline") from error
        content, bad, samples = decode_batch(structure, arena.value)
        return BuiltBatch(batch=batch, content=content, bad=tuple(bad), samples=samples)

    def close(self) -> None:
        """Nothing to end."""

    def _note_progress(self, samples_done: int) -> None:
        self._done = samples_done
