"""The loaders of a rank: their numbers, where they were constructed, their iterators and queues.

A loader that a script makes anew, as for each epoch, keeps the number it had.

A batch of tensors comes from a worker of torch's as handles: reading them, getting each from the
worker, and mapping the memory behind it takes a rank's time however early the batch was made. What
of it is the rank's own CPU time stays; the rest is waiting for a worker's answer, which comes late
while it runs Python. Where a thread pins memory, that thread takes batches, and nothing is known.
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
"""A data set that nobody but its loader has: the loader, its sampler, and whoever counts, twice."""
_PLAIN = (bool, int, float, str, type(None))


class LoaderNumbers:
    """Numbers loaders in the order of their construction.

    A loader takes the number of an earlier one that is not iterated any more where the very same
    calls construct it with the same settings, and with the same data set; or with another, where
    nobody but the earlier loader has its data set still. So one that is made in each round counts
    as one, and those for training and evaluation, made by turns at one line, as two.
    """

    def __init__(self) -> None:
        self._next = count()
        self._made: dict[Hashable, list[int]] = {}  # by how: the one that was made last comes last
        self._iterators: dict[int, list[weakref.ref[Any]]] = {}  # since each was made last
        self._datasets: dict[int, Callable[[], Any]] = {}

    def new(self) -> int:
        """Return a number that no loader has."""
        return next(self._next)

    def constructed(self, arguments: Sequence[tuple[int | str, Any]]) -> int:
        """Return the number of a loader that is being constructed.

        Args:
            arguments: By place or name; the data set is at place 0.
        """
        dataset = next((value for name, value in arguments if name in (0, "dataset")), None)
        made = self._made.setdefault((_construction_stack(), _settings_of(arguments)), [])
        over = [number for number in made if self._is_over(number)]
        again = [number for number in over if self._datasets[number]() is dataset]
        again += [number for number in over if self._is_dataset_gone(number)]
        number = again[0] if again else self.new()
        if again:
            made.remove(number)
            del self._iterators[number]
        made.append(number)
        self._datasets[number] = _weak_reference(dataset)
        return number

    def iterated(self, number: int, iterator: Any) -> None:
        """Note an iterator of a loader."""
        known = self._iterators.get(number, ())
        alive = [each for each in known if each() is not None and each() is not iterator]
        self._iterators[number] = [*alive, weakref.ref(iterator)]

    def _is_over(self, number: int) -> bool:
        """Whether a loader has been iterated since it was constructed, and is not any more."""
        known = self._iterators.get(number)
        return known is not None and all(each() is None for each in known)

    def _is_dataset_gone(self, number: int) -> bool:
        """Whether a loader's data set is gone, or would go with the loader."""
        dataset = self._datasets[number]()
        return dataset is None or sys.getrefcount(dataset) <= _OWN_REFERENCES


def _weak_reference(dataset: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(dataset)
    except TypeError:  # a list, say
        return lambda: None


def _construction_stack() -> Hashable:
    """Return the calls that led here: file and line of each frame, from the innermost on."""
    found, frame = [], sys._getframe(1).f_back  # noqa: SLF001 - inspect.stack reads source files
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def _settings_of(arguments: Sequence[tuple[int | str, Any]]) -> Hashable:
    """Return the settings among arguments, and of what type all else is, by its name."""
    return tuple(
        (name, value if type(value) in _PLAIN else _type_name(value)) for name, value in arguments
    )


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


_NUMBER_ATTRIBUTE = "_headrace_loader"  # attribute of loaders and their iterators
_FETCH_COUNT_ATTRIBUTE = "_headrace_fetched"  # of iterators: [epoch, batches asked for]
_QUEUE_POLL_ATTRIBUTE = (
    "_headrace_asked"  # of iterators: how to ask their pipe whether something is in it
)

STARTING_LOADER: ContextVar[int] = ContextVar("headrace_starting", default=-1)
"""The loader whose workers are being started, in this thread; in a worker, the one it works for."""


class LoaderRegistry:
    """The loaders of this rank, numbered as they are constructed: see LoaderNumbers.

    Attributes:
        on_iterator: Called with a loader's number and True as an iterator is being made, and with
            False when it has been: workers may start meanwhile.
        asked: The loader that was asked for a batch last; -1 before.
    """

    def __init__(self) -> None:
        self._numbers = LoaderNumbers()
        self._epochs: dict[int, int] = {}  # how often each was iterated
        self.asked = -1
        self.on_iterator: Callable[[int, bool], None] = lambda _loader, _begins: None

    def hook_torch(self, module: ModuleType) -> None:
        """Watch torch's DataLoader."""
        self._watch(module.DataLoader, _describe_torch)
        original = module._BaseDataLoaderIter.__init__  # noqa: SLF001 - see number_of_iterator

        @functools.wraps(original)
        def __init__(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(iterator, loader, *args, **kwargs)
            _register_iterator(iterator, loader)

        module._BaseDataLoaderIter.__init__ = __init__  # noqa: SLF001

    def hook_own(self, module: ModuleType) -> None:
        """Watch Headrace's DataLoader."""
        self._watch(module.DataLoader, _describe_own)

    @staticmethod
    def number_of_iterator(iterator: Any) -> int:
        """Return the number of the loader that an iterator belongs to; -1 where unknown."""
        return int(getattr(iterator, _NUMBER_ATTRIBUTE, -1))

    @staticmethod
    def count_fetch(iterator: Any) -> tuple[int, int]:
        """Count that the iterator was asked; return (epoch, number of the batch), from 0."""
        fetched = getattr(iterator, _FETCH_COUNT_ATTRIBUTE, None)
        if fetched is None:
            return 0, -1
        epoch, number = fetched
        fetched[1] = number + 1
        return epoch, number

    def add(self, *described: float | str) -> int:
        """Note a loader that no hook saw constructed, as it is used first; return its number."""
        number = self._numbers.new()
        _record_description(number, described)
        return number

    def mark(self, iterator: Any, number: int) -> None:
        """Tell an iterator its loader: it is the loader's next epoch."""
        epoch = self._epochs.get(number, 0)
        self._epochs[number] = epoch + 1
        setattr(iterator, _NUMBER_ATTRIBUTE, number)
        setattr(iterator, _FETCH_COUNT_ATTRIBUTE, [epoch, 0])
        self._numbers.iterated(number, iterator)

    @guarded
    def _constructed(self, *args: Any, **kwargs: Any) -> int:
        return self._numbers.constructed([*enumerate(args), *kwargs.items()])

    def _watch(self, loader_class: Any, describe: Callable[[Any], tuple[Any, ...]]) -> None:
        original_init, original_iter = loader_class.__init__, loader_class.__iter__

        @functools.wraps(original_init)
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            number = self._constructed(*args, **kwargs)
            number = self._numbers.new() if number is None else number  # the probe's own fault
            with _starting_workers_of(number):  # Headrace's may start right now
                original_init(loader, *args, **kwargs)
            _record_loader(loader, number, describe)

        @functools.wraps(original_iter)
        def __iter__(loader: Any) -> Any:  # noqa: N807
            number = loader.__dict__.get(_NUMBER_ATTRIBUTE, -1)
            self.on_iterator(number, True)
            try:
                with _starting_workers_of(number):
                    iterator = original_iter(loader)
            finally:
                self.on_iterator(number, False)
            _register_iterator(iterator, loader)
            return iterator

        loader_class.__init__, loader_class.__iter__ = __init__, __iter__


LOADER_REGISTRY = LoaderRegistry()


@contextmanager
def _starting_workers_of(number: int) -> Iterator[None]:
    """Let processes that start meanwhile know whose workers they are."""
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
def _record_description(number: int, described: tuple[Any, ...]) -> None:
    if (
        SESSION.is_claimed_by_another
    ):  # a program that the rank has started, with loaders of its own
        return
    file, line = script_location()
    SESSION.write(LOADERS, SESSION.rank, number, *described, file, line, time.monotonic_ns())


@guarded
def _register_iterator(iterator: Any, loader: Any) -> None:
    """Tell an iterator its loader; one that is used again is in its next epoch."""
    if (
        _NUMBER_ATTRIBUTE not in loader.__dict__
        or getattr(iterator, _FETCH_COUNT_ATTRIBUTE, (0, 1))[1] == 0
    ):
        return
    LOADER_REGISTRY.mark(iterator, loader.__dict__[_NUMBER_ATTRIBUTE])


def _describe_torch(loader: Any) -> tuple[Any, ...]:
    context = loader.multiprocessing_context
    if loader.num_workers and context is None:
        import multiprocessing

        method = multiprocessing.get_start_method(allow_none=True) or "fork"
    else:
        method = context.get_start_method() if context is not None else ""
    return (
        "torch",
        type(loader.dataset).__qualname__,
        "map" if loader._dataset_kind == 0 else "iterable",  # noqa: SLF001 - no public way to ask
        loader.num_workers,
        loader.prefetch_factor or 0,
        -1 if loader.batch_size is None else loader.batch_size,
        int(loader.pin_memory),
        int(loader.persistent_workers),
        int(getattr(loader, "in_order", True)),
        method,
    )


def _describe_own(loader: Any) -> tuple[Any, ...]:
    return (
        "ray" if loader.is_ray_dataset else "headrace",  # whose processes make its batches
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
    """Return how many batches wait in the iterator, 1 standing for one or more; -1: unknown."""
    tasks = getattr(iterator, "_task_info", None)
    if tasks is None:
        return -1
    cached = 0
    for task in tasks.values():
        cached += len(task) == 2
    poll = getattr(iterator, _QUEUE_POLL_ATTRIBUTE, None) or _queue_poll(iterator)
    return cached + (1 if poll(0) else 0)


def _queue_poll(iterator: Any) -> Callable[[int], object]:
    """Return what tells whether a batch is in the iterator's queue, and keep it with the iterator.

    The queue's own answer takes ten times as long.
    """
    queue = iterator._data_queue  # noqa: SLF001 - no public way to ask
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
    """Return how many samples a batch has, by the length of what is first in it; -1: unknown."""
    try:
        return _samples_in(batch)
    except Exception:  # noqa: BLE001 - a batch may be any object, and its methods do anything
        return -1


def _samples_in(batch: object) -> int:
    for _ in range(4):
        shape = getattr(batch, "shape", None)
        if shape is not None:
            return int(shape[0]) if len(shape) else 1
        if isinstance(batch, (list, tuple)):
            if not batch:
                return -1
            if isinstance(batch[0], (str, int, float)):
                return len(batch)
            batch = batch[0]
        elif isinstance(batch, Mapping):
            batch = next(iter(batch.values()), None)
        else:
            return -1
    return -1


_QUEUE_READS_ATTRIBUTE = "_headrace_receipts"  # attribute of iterators


class _QueueReads:
    """Of one iterator.

    Attributes:
        began_ns: When the batch that is being taken began to be read; 0: none is.
        began_cpu_ns: The CPU time of the rank's thread then.
        spent_ns: In taking batches, since that was asked last; -1: unknown.
        spent_cpu_ns: Of it: CPU time; -1: unknown.
    """

    __slots__ = ("began_cpu_ns", "began_ns", "spent_cpu_ns", "spent_ns")

    def __init__(self) -> None:
        self.began_ns = self.began_cpu_ns = 0
        self.spent_ns = self.spent_cpu_ns = -1


def time_queue_reads(module: ModuleType) -> None:
    """Time what torch's loader takes from its workers."""
    kind = module._MultiProcessingDataLoaderIter  # noqa: SLF001 - there is no public way
    original = kind._try_get_data  # noqa: SLF001 - likewise

    @functools.wraps(original)
    def _try_get_data(iterator: Any, *args: Any, **kwargs: Any) -> Any:
        if not SESSION.on:
            return original(iterator, *args, **kwargs)
        receipts = getattr(iterator, _QUEUE_READS_ATTRIBUTE, None) or _time_queue(iterator)
        receipts.began_ns = 0
        found = original(iterator, *args, **kwargs)
        if receipts.began_ns:
            receipts.spent_ns += monotonic_ns() - receipts.began_ns
            receipts.spent_cpu_ns += thread_time_ns() - receipts.began_cpu_ns
            receipts.began_ns = 0
        return found

    kind._try_get_data = _try_get_data  # noqa: SLF001 - likewise


def queue_read_ns(iterator: Any) -> tuple[int, int]:
    """Return what an iterator spent in taking batches since this was asked last: time, CPU time.

    Both are -1 where that is unknown.
    """
    receipts = getattr(iterator, _QUEUE_READS_ATTRIBUTE, None)
    if receipts is None or receipts.spent_ns < 0:
        return -1, -1
    spent = receipts.spent_ns, receipts.spent_cpu_ns
    receipts.spent_ns = receipts.spent_cpu_ns = 0
    return spent


def _time_queue(iterator: Any) -> _QueueReads:
    """Note when an iterator's queue begins to be read, from now on."""
    receipts = _QueueReads()
    setattr(iterator, _QUEUE_READS_ATTRIBUTE, receipts)
    try:
        queue = iterator._data_queue  # noqa: SLF001 - likewise
        read = getattr(queue, "_recv_bytes", None)
        if read is None:  # a thread that pins memory takes the batches
            return receipts

        def _recv_bytes(*args: Any, **kwargs: Any) -> Any:
            # It knows no iterator: one in a cycle would keep its workers.
            receipts.began_ns, receipts.began_cpu_ns = monotonic_ns(), thread_time_ns()
            return read(*args, **kwargs)

        queue._recv_bytes = _recv_bytes  # noqa: SLF001 - likewise
        receipts.spent_ns = receipts.spent_cpu_ns = 0
    except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
        SESSION.fault("receipts", error)
    return receipts
