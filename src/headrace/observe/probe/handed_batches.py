"""Batches that another thread takes from a loader and hands on to the training thread.

As background generators do by a queue, and pools of threads, which are asked for the next batch, by
a future. The training thread then waits for the queue or the future, and not in the loader's
iterator: each such wait is recorded as its request for a batch of that loader. Nothing is hooked
before such a thread takes a batch. From then on a queue's items are counted, so that the one that
is got is known by its place.
"""

from __future__ import annotations

import functools
import queue
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import get_ident
from typing import Any, NamedTuple

from headrace.core.warning_frames import skipped_by_warnings
from headrace.observe.probe.batch_samples import samples_in
from headrace.observe.probe.iterator_state import IteratorState, delivered, known_state
from headrace.observe.probe.rank_recorder import FetchBegan, RankRecorder
from headrace.observe.probe.recording_session import guarded

_ATTRIBUTE = "_headrace_batches"
"""Of queues, the batches that wait in them; of futures, the batch that they bring."""


class HandedBatch(NamedTuple):
    """A batch that a thread has taken, and that is on its way to the training thread.

    Attributes:
        loader: The number of its loader.
        epoch: The iteration of the loader.
        number: Of the batch in it; -1 where its request has a row already.
        samples: How many it has; -1 if unknown.
        sampler_ns: The time in the loader's sampler for it; -1 if unknown.
        identity: Of the object.
    """

    loader: int
    epoch: int
    number: int
    samples: int
    sampler_ns: int
    identity: int

    def is_in(self, item: object) -> bool:
        """Return whether it is an object, or a part of it, or may have been made into it."""
        if id(item) == self.identity:
            return True
        if isinstance(item, (tuple, list)) and any(id(part) == self.identity for part in item):
            return True
        return self.samples >= 0 and samples_in(item) == self.samples  # such as on a device


class HandedIterator:
    """Stands for a loader's iterator in the hooks, where its batches are handed on.

    Attributes:
        batch_samples: The samples of the batch that came last.
        waiting: How many batches wait for the training thread.
    """

    def __init__(self, loader: int) -> None:
        self.batch_samples, self.waiting, self._sampler_ns = -1, 0, -1
        self._headrace_state = state = IteratorState(is_own=True)
        state.begin_epoch(loader, 0)
        state.ready = _waiting

    def came(self, batch: HandedBatch | None) -> None:
        """Note what the training thread has got; None: no batch."""
        state = self._headrace_state
        self.batch_samples, self._sampler_ns, state.fetches = 0, -1, -1
        if batch is not None:
            self.batch_samples, self._sampler_ns = batch.samples, batch.sampler_ns
            state.epoch, state.fetches = batch.epoch, batch.number

    def take_order_ns(self) -> int:
        """Return the time of the sampler for the batch that came last; -1 if unknown."""
        return self._sampler_ns


def _waiting(iterator: HandedIterator) -> int:
    return iterator.waiting


class _QueuedBatches:
    """What waits in a queue, in its order: batches, and None for what is none."""

    def __init__(self, iterator: HandedIterator, others: int) -> None:
        self.iterator = iterator  # of the batch that was put last
        self.items: deque[HandedBatch | None] = deque([None] * others)


class HandedBatches:
    """Follows batches from the threads that take them to the training thread."""

    def __init__(self, recorder: RankRecorder) -> None:
        self._recorder = recorder
        self._taken: dict[int, HandedBatch] = {}  # by the thread that has not handed it on yet
        self._iterators: dict[int, HandedIterator] = {}  # by loader
        self._places: dict[tuple[object, int], HandedIterator] = {}  # that got batches of futures
        self._is_hooked = False

    @guarded
    def taken(self, iterator: Any, batch: object) -> None:
        """Note a batch whose request is not recorded, if another thread than that of steps has it.

        Args:
            iterator: Of its loader.
            batch: The batch.
        """
        state = known_state(iterator)
        if state is None or state.loader < 0 or not self._recorder.is_beside_training():
            return
        samples, sampler_ns = delivered(iterator, state, batch, ended=False)
        self._note(state, state.fetches, samples, sampler_ns, batch)
        if state.fetches >= 0:
            state.fetches += 1

    @guarded
    def recorded(self, state: IteratorState, batch: object, samples: int) -> None:
        """Note a batch of such a thread whose request has a row, as none has trained by then."""
        if state.loader >= 0 and self._recorder.is_beside_training():
            self._note(state, -1, samples, -1, batch)

    def _note(
        self, state: IteratorState, number: int, samples: int, sampler_ns: int, batch: object
    ) -> None:
        if not self._is_hooked:
            self._is_hooked = True
            self._hook()
        self._taken[get_ident()] = HandedBatch(
            state.loader, state.epoch, number, samples, sampler_ns, id(batch)
        )

    def _hook(self) -> None:
        queue.Queue.put = self._putting(queue.Queue.put)  # type: ignore[method-assign]
        queue.Queue.get = self._getting(queue.Queue.get)  # type: ignore[method-assign]
        Future.set_result = self._setting(Future.set_result)  # type: ignore[method-assign]
        Future.result = self._resulting(Future.result)  # type: ignore[method-assign]

    def _putting(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        @skipped_by_warnings
        def put(self: Any, item: object, *args: Any, **kwargs: Any) -> None:
            queued = handed.puts(self, item)
            try:
                original(self, item, *args, **kwargs)
            except BaseException:  # such as that it is full
                handed.not_put(queued, item)
                raise

        handed = self
        return put

    @guarded
    def puts(self, of_queue: Any, item: object) -> _QueuedBatches | None:
        """Note that an item is about to be put in a queue; None: it is not one with batches."""
        queued: _QueuedBatches | None = of_queue.__dict__.get(_ATTRIBUTE)
        batch = self._handed_on(item)
        if batch is not None:
            iterator = self._iterators[batch.loader]
            if queued is None:
                queued = of_queue.__dict__[_ATTRIBUTE] = _QueuedBatches(iterator, of_queue.qsize())
            queued.iterator = iterator
        if queued is not None:
            queued.items.append(batch)
        return queued

    @guarded
    def not_put(self, queued: _QueuedBatches | None, item: object) -> None:
        """Note that the queue did not take it; the thread may try again."""
        batch = None if queued is None else queued.items.pop()
        if batch is not None:
            self._iterators[batch.loader].waiting -= 1
            self._taken[get_ident()] = batch._replace(identity=id(item))

    def _handed_on(self, item: object) -> HandedBatch | None:
        """Return the batch that this thread hands on as an item; None if that is none."""
        batch = self._taken.get(get_ident())
        if batch is None or not self._recorder.is_beside_training() or not batch.is_in(item):
            return None
        del self._taken[get_ident()]
        self._iterators.setdefault(batch.loader, HandedIterator(batch.loader)).waiting += 1
        return batch

    def _getting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        @skipped_by_warnings
        def get(self: Any, *args: Any, **kwargs: Any) -> Any:
            queued: _QueuedBatches | None = self.__dict__.get(_ATTRIBUTE)
            if queued is None:
                return original(self, *args, **kwargs)
            iterator = queued.iterator
            began = handed.began(iterator)
            try:
                item = original(self, *args, **kwargs)
            except BaseException as error:
                handed.raised(iterator, began, error)
                raise
            handed.got(iterator, began, queued.items.popleft() if queued.items else None, item)
            return item

        handed = self
        return get

    @guarded
    def began(self, iterator: HandedIterator) -> FetchBegan | None:
        """Record that the training thread begins to wait; None: this is another one."""
        return None if self._recorder.is_beside_training() else self._recorder.fetch_began(iterator)

    @guarded
    def raised(
        self, iterator: HandedIterator, began: FetchBegan | None, error: BaseException
    ) -> None:
        """Record that such a wait ended with an error, as that a queue is still empty."""
        if began is not None:
            self._recorder.fetch_raised(iterator, began, error)

    @guarded
    def got(
        self,
        iterator: HandedIterator,
        began: FetchBegan | None,
        batch: HandedBatch | None,
        item: object,
    ) -> None:
        """Record that a thread has got what was handed on to it.

        Args:
            iterator: Of the loader that the request seemed to be for.
            began: The request, if the training thread's.
            batch: What it has got; None: no batch, such as a mark of the end.
            item: The object.
        """
        if batch is not None:
            self._iterators[batch.loader].waiting -= 1
        if began is not None:
            iterator.came(batch)
            self._recorder.fetch_ended(iterator, began, item, ended=batch is None)
        elif batch is not None and self._recorder.is_beside_training():  # hands it on itself
            self._taken[get_ident()] = batch._replace(identity=id(item))

    def _setting(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        @skipped_by_warnings
        def set_result(self: Any, result: object) -> None:
            note(self, result)
            original(self, result)

        note = self._set_result
        return set_result

    @guarded
    def _set_result(self, future: Any, result: object) -> None:
        batch = self._handed_on(result)
        if batch is not None:
            future.__dict__[_ATTRIBUTE] = batch

    def _resulting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        @skipped_by_warnings
        def result(self: Any, *args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1)  # noqa: SLF001 - inspect.currentframe is the same
            place = (caller.f_code, caller.f_lineno)
            iterator = handed.iterator_of_future(self, place)
            began = None if iterator is None else handed.began(iterator)
            try:
                value = original(self, *args, **kwargs)
            except BaseException as error:
                if iterator is not None:
                    handed.raised(iterator, began, error)
                raise
            handed.resulted(self, place, (iterator, began), value)
            return value

        handed = self
        return result

    @guarded
    def iterator_of_future(self, future: Any, place: tuple[object, int]) -> HandedIterator | None:
        """Return of which loader a future has a batch, or will have, as its place's last one."""
        batch: HandedBatch | None = future.__dict__.get(_ATTRIBUTE)
        if batch is not None:
            return self._iterators[batch.loader]
        return None if future.done() else self._places.get(place)

    @guarded
    def resulted(
        self,
        future: Any,
        place: tuple[object, int],
        request: tuple[HandedIterator | None, FetchBegan | None],
        value: object,
    ) -> None:
        """Record what a future has brought, and whether its place gets batches."""
        batch: HandedBatch | None = future.__dict__.pop(_ATTRIBUTE, None)
        iterator, began = request
        if batch is not None:
            iterator = self._places[place] = self._iterators[batch.loader]
        if iterator is not None:
            self.got(iterator, began, batch, value)
