"""The protocols of executors and remote workers, and an iteration's claim on an executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from headrace.data.loader.batch_builder import BatchSpec, LoaderSpec, PickledLoaderSpec
from headrace.data.loader.failures import BatchFailure
from headrace.data.loader.workers.messages import TaskMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltBatch:
    """One made batch, or the end of a worker's partition.

    Attributes:
        batch: The batch's number in the iteration.
        content: The batch; None where an iterable dataset's worker had no more.
        bad: Quarantine records of the bad samples met.
        samples: Samples in the batch.
        exhausted: An iterable dataset's worker has no more batches.
    """

    batch: int
    content: Any = None
    bad: tuple[Mapping[str, Any], ...] = ()
    samples: int = 0
    exhausted: bool = False


class Executor(Protocol):
    """Makes batches for one iteration at a time and returns them in order.

    Attributes:
        workers: Number of workers.
    """

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
        """Return the next batch in order.

        Args:
            timeout_s: Longest wait for it, in seconds.
            on_room: Called when there is room for more batch specs.

        Raises:
            LoaderTimeoutError: It was not made within `timeout_s` seconds.
            WorkerError: The user's code raised.
        """

    def finish(self) -> None:
        """Drop unfinished batches: the iteration has ended or was abandoned."""

    def close(self) -> None:
        """End all workers and free all memory that no batch uses."""


class RemoteWorkers(Protocol):
    """Makes batches for an executor on other hosts, in the same slots as its own workers.

    It answers where workers do: with their answers, with RETURNED for a task that others must do,
    and
    with ROOM whenever the number of tasks that it can take changes.

    Attributes:
        max_open_tasks: The most tasks that it can ever have.
        most_bytes: The most memory that prefetched batches may take, in bytes.
        strands: Number of partitions of an iterable dataset that it iterates.
    """

    max_open_tasks: int
    most_bytes: int
    strands: int

    def connect(self, slots: Sequence[int], answers: int) -> None:
        """Attach to the executor; called once, before anything else.

        Args:
            slots: Descriptors of the slots' files.
            answers: Descriptor of the socket for answers.
        """

    @property
    def lives(self) -> bool:
        """Whether it can still make batches."""

    def start(self, loader_spec: PickledLoaderSpec, partitions: range) -> None:
        """Make batches of a loader from now on; restarts it where it has ended.

        Args:
            loader_spec: The loader spec.
            partitions: The partitions of an iterable dataset that it iterates from the start, out
                of `partitions.stop` in all. Empty for a map-style dataset.
        """

    def send(self, task: TaskMessage, partition: int) -> None:
        """Take a task; `partition` matters for an iterable dataset."""

    def reclaim_partition(self, partition: int) -> None:
        """Return all tasks of a partition, now and later: a worker here will iterate it."""

    def forget(self) -> bool:
        """Drop all tasks; afterwards nobody writes to a slot or answers for one.

        Returns:
            Whether it still lives.
        """

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


def release_executor(executor: Executor, idle: list[Executor] | None) -> None:
    """Keep an executor for the next iteration, or close it if another is kept already.

    Args:
        executor: It has finished its iteration.
        idle: Kept executors; None where the loader has died, like one made in a `for` line.
    """
    executor.finish()
    if idle is None or idle:
        executor.close()
    else:
        idle.append(executor)


def close_executors(executors: list[Executor]) -> None:
    """End all workers of executors."""
    for executor in executors:
        executor.close()
