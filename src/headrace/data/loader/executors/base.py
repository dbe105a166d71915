"""The protocols of executors and of remote workers, and the use of an executor by an iteration."""

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
    """Batch `batch` is made.

    Attributes:
        batch: The batch's number in the iteration.
        content: The batch; None where an iterable dataset's worker had no more.
        bad: Quarantine records of the bad samples met on the way.
        samples: How many samples it was made of.
        exhausted: An iterable dataset's worker has no more batches.
    """

    batch: int
    content: Any = None
    bad: tuple[Mapping[str, Any], ...] = ()
    samples: int = 0
    exhausted: bool = False


class Executor(Protocol):
    """Makes batches for one iteration at a time and hands them over in order.

    Attributes:
        workers: How many workers make batches.
    """

    workers: int

    @property
    def usable(self) -> bool:
        """Whether it can begin an iteration in this process."""

    def start(self, recipe: LoaderSpec) -> None:
        """Get ready for an iteration over `recipe`; raises LoaderError where it cannot be sent."""

    def has_room(self) -> bool:
        """Whether another order can be taken now."""

    def submit(self, order: BatchSpec) -> None:
        """Take the order of the next batch; only when there is room."""

    def next_made(self, timeout_s: float, on_room: Callable[[], None]) -> BuiltBatch:
        """Return the next batch in order.

        Args:
            timeout_s: Longest wait for it, in seconds.
            on_room: Called where there has come to be room for orders meanwhile.

        Raises:
            LoaderTimeoutError: It was not made within `timeout_s` seconds.
            WorkerError: The user's code raised.
        """

    def finish(self) -> None:
        """Forget what is under way: the iteration is over, or was left."""

    def close(self) -> None:
        """End all workers and free all memory that no batch uses."""


class RemoteWorkers(Protocol):
    """Makes batches for an executor beside its own workers, in the same slots.

    It answers where workers do: with what they say, with RETURNED for a ticket that others are to
    see to, and with ROOM whenever it can have more or fewer tickets.

    Attributes:
        max_open_tasks: The most tickets that it will ever have room for.
        most_bytes: The most memory that batches made ahead may take, in bytes.
        strands: For how many workers it stands where a dataset is iterated.
    """

    max_open_tasks: int
    most_bytes: int
    strands: int

    def connect(self, slots: Sequence[int], answers: int) -> None:
        """Get ready; once, before anything else.

        Args:
            slots: Descriptors of the slots' files.
            answers: That of the socket which takes answers.
        """

    @property
    def lives(self) -> bool:
        """Whether it can be asked for anything."""

    def start(self, recipe: PickledLoaderSpec, strands: range) -> None:
        """Make batches of a recipe from now on; one that has ended begins anew.

        Args:
            recipe: The recipe.
            strands: The numbers of the workers for which it stands where the dataset is iterated,
                out of `strands.stop` in all; they begin anew. Empty where it is indexed.
        """

    def send(self, ticket: TaskMessage, partition: int) -> None:
        """Take a ticket; it is of that worker's strand of an iterable dataset."""

    def reclaim_partition(self, partition: int) -> None:
        """Return all tickets of a worker's strand, now and later: it is gone through elsewhere."""

    def forget(self) -> bool:
        """Forget all tickets; when this returns, nobody writes to a slot or answers for one.

        Returns:
            Whether it still lives.
        """

    def report_failure(self, failure: BatchFailure, worker: int) -> None:
        """Note that one of its workers failed in a batch which could be made here."""

    def close(self) -> None:
        """End all that works for it."""


_CLAIMS: WeakKeyDictionary[Executor, object] = WeakKeyDictionary()


def claim_executor(executor: Executor) -> Callable[[], bool]:
    """Take an executor for an iteration; return what tells whether another has taken it since."""
    turn = _CLAIMS[executor] = object()
    # Where all of it is garbage together, the entry goes first.
    return lambda: _CLAIMS.get(executor, turn) is not turn


def release_executor(executor: Executor, idle: list[Executor] | None) -> None:
    """Keep one executor for the next iteration; others, of iterations side by side, are ended.

    Args:
        executor: It has done its iteration.
        idle: Those that are kept; None where the loader is gone, as that of a `for` line is.
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
