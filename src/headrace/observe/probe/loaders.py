"""The loaders of a rank: their numbers, where they were constructed, their iterators and queues.

A loader that a script constructs again, such as for each epoch, keeps its number.

A batch of tensors comes from a torch worker as handles: reading them, fetching each from the worker
and mapping the memory behind it takes the rank's time however early the batch was made. Part of it
is the rank's own CPU time; the rest is waiting for the worker, which answers late while it runs
Python. Where a thread pins memory, that thread takes the batches, and these times are unknown.
"""

from __future__ import annotations

import functools
import select
import sys
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from time import monotonic_ns, thread_time_ns
from types import ModuleType
from typing import Any

from headrace.core import env
from headrace.core.source_location import script_location
from headrace.observe.probe.recording_session import SESSION, guarded
from headrace.records.schema import LOADERS

_OWN_REFERENCES = 4
"""References to a dataset that only its loader uses: loader, sampler, and two of the counting."""
_PLAIN = (bool, int, float, str, type(None))


class LoaderNumbers:
    """Numbers loaders in the order of their construction.

    A loader takes the number of an earlier one whose iteration has ended if the same call stack
    constructs it with the same settings and the same dataset, or with another dataset if only the
    earlier loader still refers to its own. So a loader made anew in each round counts as one, and
    those for training and evaluation, made by turns at one line, count as two.
    """

    def __init__(self) -> None:
        self._next = count()
        self._made: dict[Hashable, list[int]] = {}  # by construction; the latest comes last
        self._iterators: dict[int, list[weakref.ref[Any]]] = {}  # since each was last constructed
        self._datasets: dict[int, Callable[[], Any]] = {}

    def new(self) -> int:
        """Return an unused number."""
        return next(self._next)

    def constructed(self, arguments: Sequence[tuple[int | str, Any]]) -> int:
        """Return the number of a loader that is being constructed.

        Args:
            arguments: The constructor's, by position or name; the dataset is at position 0.
        """
        dataset = next((value for name, value in arguments if name in (0, "dataset")), None)
        numbers = self._made.setdefault((_construction_stack(), _settings_of(arguments)), [])
        unused = [number for number in numbers if self._is_over(number)]
        reusable = [number for number in unused if self._datasets[number]() is dataset]
        reusable += [number for number in unused if self._is_dataset_gone(number)]
        number = reusable[0] if reusable else self.new()
        if reusable:
            numbers.remove(number)
            del self._iterators[number]
        numbers.append(number)
        self._datasets[number] = _weak_reference(dataset)
        return number

    def iterated(self, number: int, iterator: Any) -> None:
        """Register an iterator of a loader."""
        known = self._iterators.get(number, ())
        alive = [ref for ref in known if ref() is not None and ref() is not iterator]
        self._iterators[number] = [*alive, weakref.ref(iterator)]

    def _is_over(self, number: int) -> bool:
        """Return whether a loader was iterated since its construction, and no iterator is left."""
        known = self._iterators.get(number)
        return known is not None and all(ref() is None for ref in known)

    def _is_dataset_gone(self, number: int) -> bool:
        """Return whether a loader's dataset is gone, or would go with the loader."""
        dataset = self._datasets[number]()
        return dataset is None or sys.getrefcount(dataset) <= _OWN_REFERENCES


def _weak_reference(dataset: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(dataset)
    except TypeError:  # such as a list
        return lambda: None


def _construction_stack() -> Hashable:
    """Return file and line of each frame that led here, innermost first."""
    found, frame = [], sys._getframe(1).f_back  # noqa: SLF001 - inspect.stack reads source files
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def _settings_of(arguments: Sequence[tuple[int | str, Any]]) -> Hashable:
    """Return the settings among arguments, and the type names of all others."""
    return tuple(
        (name, value if type(value) in _PLAIN else _type_name(value)) for name, value in arguments
    )


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


_NUMBER_ATTRIBUTE = "_headrace_loader"  # attribute of loaders and their iterators
_FETCH_COUNT_ATTRIBUTE = "_headrace_fetched"  # of iterators: [epoch, batches asked for]
_QUEUE_POLL_ATTRIBUTE = "_headrace_asked"  # of iterators: polls their queue for a batch

STARTING_LOADER: ContextVar[int] = ContextVar("headrace_starting", default=-1)
"""The loader whose workers this thread is starting; in a worker, the one it works for."""


class LoaderRegistry:
    """The loaders of this rank, numbered as they are constructed: see LoaderNumbers.

    Attributes:
        on_iterator: Called with a loader's number and True before an iterator is made, and with
            False afterwards; workers may start in between.
        asked: The loader that the last batch was requested from; -1 before the first.
    """

    def __init__(self) -> None:
        self._numbers = LoaderNumbers()
        self._epochs: dict[int, int] = {}  # iterations of each loader
        self.asked = -1
        self.on_iterator: Callable[[int, bool], None] = lambda _loader, _begins: None

    def hook_torch(self, module: ModuleType) -> None:
        """Hook torch's DataLoader."""
        loader_class = module.DataLoader
        original_init, original_iter = loader_class.__init__, loader_class.__iter__

        @functools.wraps(original_init)
        def construct(loader: Any, *args: Any, **kwargs: Any) -> None:
            self._construct(_describe_torch, original_init, loader, args, kwargs)

        @functools.wraps(original_iter)
        def iterate(loader: Any) -> Any:
            return self.iterate(original_iter, loader)

        loader_class.__init__, loader_class.__iter__ = construct, iterate
        original = module._BaseDataLoaderIter.__init__  # noqa: SLF001 - see number_of_iterator

        @functools.wraps(original)
        def __init__(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(iterator, loader, *args, **kwargs)
            _register_iterator(iterator, loader)

        module._BaseDataLoaderIter.__init__ = __init__  # noqa: SLF001

    def construct_own(
        self, construct: Callable[..., None], loader: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Construct a loader of Headrace's by `construct`, and record it."""
        self._construct(_describe_own, construct, loader, args, kwargs)

    def iterate(self, begin: Callable[[Any], Any], loader: Any) -> Any:
        """Return a loader's new iterator, which `begin` returns, with the loader's number."""
        number = loader.__dict__.get(_NUMBER_ATTRIBUTE, -1)
        self.on_iterator(number, True)
        try:
            with _starting_workers_of(number):
                iterator = begin(loader)
        finally:
            self.on_iterator(number, False)
        _register_iterator(iterator, loader)
        return iterator

    @staticmethod
    def number_of_iterator(iterator: Any) -> int:
        """Return the number of the loader that an iterator belongs to; -1 where unknown."""
        return int(getattr(iterator, _NUMBER_ATTRIBUTE, -1))

    @staticmethod
    def count_fetch(iterator: Any) -> tuple[int, int]:
        """Count a request for a batch; return (epoch, number of the batch), both from 0."""
        fetched = getattr(iterator, _FETCH_COUNT_ATTRIBUTE, None)
        if fetched is None:
            return 0, -1
        epoch, number = fetched
        fetched[1] = number + 1
        return epoch, number

    def add(self, *description: float | str) -> int:
        """Record a loader whose construction no hook saw, at its first use; return its number."""
        number = self._numbers.new()
        _record_description(number, description)
        return number

    def mark(self, iterator: Any, number: int) -> None:
        """Attach a loader's number and next epoch to an iterator."""
        epoch = self._epochs.get(number, 0)
        self._epochs[number] = epoch + 1
        setattr(iterator, _NUMBER_ATTRIBUTE, number)
        setattr(iterator, _FETCH_COUNT_ATTRIBUTE, [epoch, 0])
        self._numbers.iterated(number, iterator)

    @guarded
    def _number_of_new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        return self._numbers.constructed([*enumerate(args), *kwargs.items()])

    def _construct(
        self, describe: Callable[[Any], tuple[Any, ...]], construct: Callable[..., None],
        loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> None:  # fmt: skip
        number = self._number_of_new(args, kwargs)
        number = self._numbers.new() if number is None else number  # None if the probe failed
        with _starting_workers_of(number):  # Headrace's workers may start right now
            construct(loader, *args, **kwargs)
        _record_loader(loader, number, describe)


LOADER_REGISTRY = LoaderRegistry()


@contextmanager
def _starting_workers_of(number: int) -> Iterator[None]:
    """Let worker processes that start in the block know their loader's number."""
    token = STARTING_LOADER.set(number)
    try:
        with env.child_overrides({env.LOADER.name: str(number)}):
            yield
    finally:
        STARTING_LOADER.reset(token)


@guarded
def _record_loader(loader: Any, number: int, describe: Callable[[Any], tuple[Any, ...]]) -> None:
    if SESSION.role != "rank":
        return
    loader.__dict__[_NUMBER_ATTRIBUTE] = number
    _record_description(number, describe(loader))


@guarded
def _record_description(number: int, description: tuple[Any, ...]) -> None:
    if SESSION.is_claimed_by_another:  # a program that the rank started, with its own loaders
        return
    file, line = script_location()
    SESSION.write(LOADERS, SESSION.rank, number, *description, file, line, time.monotonic_ns())


@guarded
def _register_iterator(iterator: Any, loader: Any) -> None:
    """Attach a loader's number to an iterator; a reused iterator begins its next epoch."""
    if (
        _NUMBER_ATTRIBUTE not in loader.__dict__
        or getattr(iterator, _FETCH_COUNT_ATTRIBUTE, (0, 1))[1] == 0
    ):
        return
    LOADER_REGISTRY.mark(iterator, loader.__dict__[_NUMBER_ATTRIBUTE])


def _describe_torch(loader: Any) -> tuple[Any, ...]:
    context = loader.multiprocessing_context
    if loader.num_workers and context is None:
        method = start_method()
    else:
        method = context.get_start_method() if context is not None else ""
    return (
        "torch",
        type(loader.dataset).__qualname__,
        "map" if loader._dataset_kind == 0 else "iterable",  # noqa: SLF001 - no public way
        loader.num_workers,
        loader.prefetch_factor or 0,
        -1 if loader.batch_size is None else loader.batch_size,
        int(loader.pin_memory),
        int(loader.persistent_workers),
        int(getattr(loader, "in_order", True)),
        method,
    )


def start_method() -> str:
    """Return how this process starts others, where nobody says it: fork, spawn, forkserver.

    Python's default is the first of all methods, forkserver from 3.14 on. To ask
    `get_start_method` for it would fix it, and the script could choose no other.
    """
    import multiprocessing

    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def _describe_own(loader: Any) -> tuple[Any, ...]:
    return (
        # Which library's processes make its batches.
        "ray" if loader.is_ray_dataset else "headrace",
        type(loader.dataset).__qualname__,
        "iterable" if loader.iterable else "map",
        loader.num_workers,
        -(-loader.prefetch_batches // max(loader.num_workers, 1)),
        -1 if loader.batch_size is None else loader.batch_size,
        int(loader.pin_memory),
        1,
        1,
        "fork" if loader.num_workers else "",
    )


def ready_batches(iterator: Any) -> int:
    """Return how many batches wait in the iterator, 1 meaning one or more; -1 if unknown."""
    tasks = getattr(iterator, "_task_info", None)
    if tasks is None:
        return -1
    cached = 0
    for task in tasks.values():
        cached += len(task) == 2
    poll = getattr(iterator, _QUEUE_POLL_ATTRIBUTE, None) or _queue_poll(iterator)
    return cached + (1 if poll(0) else 0)


def _queue_poll(iterator: Any) -> Callable[[int], object]:
    """Return a function that polls the iterator's queue for a batch, cached on the iterator.

    The queue's own `empty` takes ten times as long.
    """
    queue = iterator._data_queue  # noqa: SLF001 - no public way
    reader = getattr(queue, "_reader", None)
    poll: Callable[[int], object]
    if reader is None:  # the pinning thread's queue is no pipe

        def poll(_: int) -> bool:
            return not queue.empty()
    else:
        poller = select.poll()
        poller.register(reader.fileno(), select.POLLIN)
        poll = poller.poll
    setattr(iterator, _QUEUE_POLL_ATTRIBUTE, poll)
    return poll


def samples_in(batch: object) -> int:
    """Return the samples in a batch by the length of its first element; -1 if unknown."""
    try:
        for _ in range(4):
            shape = getattr(batch, "shape", None)
            if shape is not None:
                return int(shape[0]) if len(shape) else 1
            if isinstance(batch, Mapping):
                batch = next(iter(batch.values()), None)
            elif not isinstance(batch, (list, tuple)) or not batch:
                return -1
            elif isinstance(batch[0], (str, int, float)):
                return len(batch)
            else:
                batch = batch[0]
    except Exception:  # noqa: BLE001, S110 - a batch may be any object, with any methods
        pass
    return -1


_QUEUE_READS_ATTRIBUTE = "_headrace_receipts"  # attribute of iterators


class _QueueReads:
    """Times of reading the queue of one iterator."""

    __slots__ = ("began_cpu_ns", "began_ns", "spent_cpu_ns", "spent_ns")

    def __init__(self) -> None:
        # When reading the current batch began, 0 if none is being read; the thread's CPU time then.
        self.began_ns = self.began_cpu_ns = 0
        self.spent_ns = self.spent_cpu_ns = -1  # in reads since it was last queried; -1: unknown


def time_queue_reads(module: ModuleType) -> None:
    """Time how long torch's loader takes to read batches from its workers."""
    kind = module._MultiProcessingDataLoaderIter  # noqa: SLF001 - no public way
    original = kind._try_get_data  # noqa: SLF001 - no public way

    @functools.wraps(original)
    def _try_get_data(iterator: Any, *args: Any, **kwargs: Any) -> Any:
        if not SESSION.on:
            return original(iterator, *args, **kwargs)
        reads = getattr(iterator, _QUEUE_READS_ATTRIBUTE, None) or _time_queue(iterator)
        reads.began_ns = 0
        found = original(iterator, *args, **kwargs)
        if reads.began_ns:
            reads.spent_ns += monotonic_ns() - reads.began_ns
            reads.spent_cpu_ns += thread_time_ns() - reads.began_cpu_ns
            reads.began_ns = 0
        return found

    kind._try_get_data = _try_get_data  # noqa: SLF001 - no public way


def queue_read_ns(iterator: Any) -> tuple[int, int]:
    """Return time and CPU time of queue reads since the last call; -1 if unknown."""
    reads = getattr(iterator, _QUEUE_READS_ATTRIBUTE, None)
    if reads is None or reads.spent_ns < 0:
        return -1, -1
    spent = reads.spent_ns, reads.spent_cpu_ns
    reads.spent_ns = reads.spent_cpu_ns = 0
    return spent


def _time_queue(iterator: Any) -> _QueueReads:
    """Record from now on when reading an iterator's queue begins."""
    reads = _QueueReads()
    setattr(iterator, _QUEUE_READS_ATTRIBUTE, reads)
    try:
        queue = iterator._data_queue  # noqa: SLF001 - no public way
        read = getattr(queue, "_recv_bytes", None)
        if read is None:  # a thread that pins memory takes the batches
            return reads

        def _recv_bytes(*args: Any, **kwargs: Any) -> Any:
            # No reference to the iterator: a cycle would keep its workers alive.
            reads.began_ns, reads.began_cpu_ns = monotonic_ns(), thread_time_ns()
            return read(*args, **kwargs)

        queue._recv_bytes = _recv_bytes  # noqa: SLF001 - no public way
        reads.spent_ns = reads.spent_cpu_ns = 0
    except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
        SESSION.fault("receipts", error)
    return reads
