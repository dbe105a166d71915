"""Which loaders a rank has, where they were constructed, and what their iterators belong to."""

from __future__ import annotations

import functools
import select
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from headrace.core import env
from headrace.core.places import place_in_script
from headrace.observe.probe.loader_numbers import LoaderNumbers
from headrace.observe.probe.session import SESSION, guarded
from headrace.records.schema import LOADERS

_NUMBER = "_headrace_loader"  # attribute of loaders and their iterators
_FETCHED = "_headrace_fetched"  # of iterators: [epoch, batches asked for]
_ASKED = "_headrace_asked"  # of iterators: how to ask their pipe whether something is in it

STARTING: ContextVar[int] = ContextVar("headrace_starting", default=-1)
"""The loader whose workers are being started, in this thread; in a worker, the one it works for."""


class LoadersSeen:
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
            _mark_iterator(iterator, loader)

        module._BaseDataLoaderIter.__init__ = __init__  # noqa: SLF001

    def hook_own(self, module: ModuleType) -> None:
        """Watch Headrace's DataLoader."""
        self._watch(module.DataLoader, _describe_own)

    @staticmethod
    def number_of_iterator(iterator: Any) -> int:
        """Return the number of the loader that an iterator belongs to; -1 where unknown."""
        return int(getattr(iterator, _NUMBER, -1))

    @staticmethod
    def count_fetch(iterator: Any) -> tuple[int, int]:
        """Count that the iterator was asked; return (epoch, number of the batch), from 0."""
        fetched = getattr(iterator, _FETCHED, None)
        if fetched is None:
            return 0, -1
        epoch, number = fetched
        fetched[1] = number + 1
        return epoch, number

    def add(self, *described: float | str) -> int:
        """Note a loader that no hook saw constructed, as it is used first; return its number."""
        number = self._numbers.new()
        _note_description(number, described)
        return number

    def mark(self, iterator: Any, number: int) -> None:
        """Tell an iterator its loader: it is the loader's next epoch."""
        epoch = self._epochs.get(number, 0)
        self._epochs[number] = epoch + 1
        setattr(iterator, _NUMBER, number)
        setattr(iterator, _FETCHED, [epoch, 0])
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
            with _workers_belong_to(number):  # Headrace's may start right now
                original_init(loader, *args, **kwargs)
            _note_loader(loader, number, describe)

        @functools.wraps(original_iter)
        def __iter__(loader: Any) -> Any:  # noqa: N807
            number = loader.__dict__.get(_NUMBER, -1)
            self.on_iterator(number, True)
            try:
                with _workers_belong_to(number):
                    iterator = original_iter(loader)
            finally:
                self.on_iterator(number, False)
            _mark_iterator(iterator, loader)
            return iterator

        loader_class.__init__, loader_class.__iter__ = __init__, __iter__


LOADERS_SEEN = LoadersSeen()


@contextmanager
def _workers_belong_to(number: int) -> Iterator[None]:
    """Let processes that start meanwhile know whose workers they are."""
    token = STARTING.set(number)
    try:
        with env.for_children({env.LOADER.name: str(number)}):
            yield
    finally:
        STARTING.reset(token)


@guarded
def _note_loader(loader: Any, number: int, describe: Callable[[Any], tuple[Any, ...]]) -> None:
    if SESSION.role != "rank":
        return
    loader.__dict__[_NUMBER] = number
    _note_description(number, describe(loader))


@guarded
def _note_description(number: int, described: tuple[Any, ...]) -> None:
    if (
        SESSION.is_claimed_by_another
    ):  # a program that the rank has started, with loaders of its own
        return
    file, line = place_in_script()
    SESSION.write(LOADERS, SESSION.rank, number, *described, file, line, time.monotonic_ns())


@guarded
def _mark_iterator(iterator: Any, loader: Any) -> None:
    """Tell an iterator its loader; one that is used again is in its next epoch."""
    if _NUMBER not in loader.__dict__ or getattr(iterator, _FETCHED, (0, 1))[1] == 0:
        return
    LOADERS_SEEN.mark(iterator, loader.__dict__[_NUMBER])


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
        "ray" if loader.is_rays else "headrace",  # whose processes make its batches
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
    ask = getattr(iterator, _ASKED, None) or _way_to_ask(iterator)
    return cached + (1 if ask(0) else 0)


def _way_to_ask(iterator: Any) -> Callable[[int], object]:
    """Return what tells whether a batch is in the iterator's queue, and keep it with the iterator.

    The queue's own answer takes ten times as long.
    """
    queue = iterator._data_queue  # noqa: SLF001 - no public way to ask
    reader = getattr(queue, "_reader", None)
    ask: Callable[[int], object]
    if reader is None:  # the pinning thread's queue is no pipe

        def ask(_: int) -> bool:
            return not queue.empty()
    else:
        poller = select.poll()
        poller.register(reader.fileno(), select.POLLIN)
        ask = poller.poll
    setattr(iterator, _ASKED, ask)
    return ask


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
