"""What other packages register with Headrace's own loader: observers, overrides, executors.

The probe, `--apply` and offload register here, so the loader knows none of them, and the probe
imports no loader. Where nothing is registered, the loader compares an attribute with None.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol


class LoaderObserver(Protocol):
    """Observes the loaders of a process that iterates them.

    Headrace's iterators have `batch_samples`, the samples in the batch delivered last, and
    `take_order_ns()`, the time spent in the plan or sampler since it was called last.
    """

    def construct(self, construct: Callable[..., None], loader: Any, *args: Any, **kw: Any) -> None:
        """Construct a loader: call `construct` with the arguments; workers may start in it."""

    def iterate(self, begin: Callable[[Any], Any], loader: Any) -> Any:
        """Return the iterator that `begin` returns for a loader; workers may start in it."""

    def fetch_began(self, iterator: Any) -> Any | None:
        """Note a request for a batch; return what `fetch_ended` needs, None if it is not needed."""

    def fetch_ended(self, iterator: Any, began: Any, batch: Any) -> None:
        """Note that the script gets a batch."""

    def fetch_raised(self, iterator: Any, began: Any, error: BaseException) -> None:
        """Note that a request for a batch raises an error: StopIteration if there is none."""

    def next_unrecorded(self, iterator: Any, make: Callable[[], Any]) -> Any:
        """Return what `make` does, a batch for which `fetch_began` returned None."""


class BatchObserver(Protocol):
    """Observes a process that makes batches: a worker, or a rank without workers."""

    def working(self, number: int) -> AbstractContextManager[None]:
        """Return a context for the whole life of worker `number`, in its process."""

    def make_batch(self, make: Callable[[], tuple[bytes, int]], dataset: Any) -> bytes:
        """Return the first result of `make`: a batch's content, and how many samples it has."""

    def make_sample(self, make: Callable[[Any, int], Any], index: Any, seed: int) -> Any:
        """Return what `make` returns for a sample's index and seed."""


class ReadObserver(Protocol):
    """Observes reads of samples from files and object storage."""

    def timed(self, read: Callable[[], Any], /) -> Any:
        """Return what `read`, which waits for data, returns."""

    def received(self, answer: Any) -> None:
        """Note an answer of object storage."""


class ExecutorFactory(Protocol):
    """Makes the executors of `headrace.DataLoader`s, and decides who shares iterable datasets."""

    def new_executor(self, loader: Any) -> Any:
        """Return a new executor of a `DataLoader`, made by its `new_executor`."""

    def remote_partitions(self, loader: Any) -> int:
        """Return how many partitions of its iterable dataset are iterated on other hosts."""


class LoaderHooks:
    """What is registered in this process; None where nothing is.

    Attributes:
        loaders, batches, reads: The observers.
        executors: The factory of executors; without one they work on this host alone.
        override: Calls a loader's constructor, the first argument, with the others, some changed.
    """

    loaders: LoaderObserver | None = None
    batches: BatchObserver | None = None
    reads: ReadObserver | None = None
    executors: ExecutorFactory | None = None
    override: Callable[..., None] | None = None


LOADER_HOOKS = LoaderHooks()
