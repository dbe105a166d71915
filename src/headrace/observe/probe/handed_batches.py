"""Batches that another thread takes from a loader and hands on to the training thread.

As background generators do by a queue, and pools of threads, which are asked for the next batch, by
a future. The training thread then waits for the queue or the future, and not in the loader's
iterator: each such wait is recorded as its request for a batch of that loader. Nothing is hooked
before such a thread takes a batch.
"""

from __future__ import annotations

import functools
import queue
import sys
from collections.abc import Callable
from concurrent.futures import Future
from threading import get_ident
from time import monotonic_ns
from typing import Any, NamedTuple

from headrace.core.warning_frames import skipped_by_warnings
from headrace.observe.probe.batch_samples import samples_in
from headrace.observe.probe.iterator_state import IteratorState, delivered, known_state
from headrace.observe.probe.rank_recorder import FetchBegan, RankRecorder
from headrace.observe.probe.recording_session import guarded

_ATTRIBUTE = "_headrace_batches"
"""Of queues, the batches in them; of futures, the batch that they bring."""
_Place = tuple[object, int]
"""Code, and a line of it, that asks futures for batches."""


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
        waiting: How many batches waited as the training thread asked for one.
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


_Request = tuple[HandedIterator, FetchBegan]
"""A request of the training thread's for a batch: of which loader, and what `fetch_ended` needs."""


class _QueuedBatches:
    """The batches in a queue, by the identity of the item that each is in."""

    def __init__(self, iterator: HandedIterator) -> None:
        self.iterator = iterator  # of the batch that was put last
        self.by_item: dict[int, HandedBatch] = {}


class HandedBatches:
    """Follows batches from the threads that take them to the training thread."""

    def __init__(self, recorder: RankRecorder) -> None:
        self._recorder = recorder
        self._taken: dict[int, HandedBatch] = {}  # by the thread that has not handed it on yet
        self._iterators: dict[int, HandedIterator] = {}  # by loader
        self._places: dict[_Place, HandedIterator] = {}  # that have got batches of futures
        self._is_hooked = False

    @guarded
    def taken(self, iterator: Any, batch: object) -> None:
        """Note a batch whose request is not recorded, if another thread than that of steps has it.

        Args:
            iterator: Of its loader.
            batch: The batch.
        """
        state = known_state(iterator)
        if state is None or state.loader < 0 or not self._recorder.is_other_thread():
            return
        samples, sampler_ns = delivered(iterator, state, batch, ended=False)
        self._note(state, state.fetches, samples, sampler_ns, batch)
        if state.fetches >= 0:
            state.fetches += 1

    @guarded
    def recorded(self, state: IteratorState, batch: object, samples: int) -> None:
        """Note a batch of such a thread whose request has a row, as none has trained by then."""
        if state.loader >= 0 and self._recorder.is_other_thread():
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
        """Note that an item is about to be put in a queue, and return the batches there.

        None: it is no batch.
        """
        queued: _QueuedBatches | None = of_queue.__dict__.get(_ATTRIBUTE)
        batch = self._handed_on(item)
        if batch is None:
            return None
        iterator = self._iterator_of(batch)
        if queued is None:
            queued = of_queue.__dict__[_ATTRIBUTE] = _QueuedBatches(iterator)
        queued.iterator, queued.by_item[id(item)] = iterator, batch
        return queued

    @guarded
    def not_put(self, queued: _QueuedBatches | None, item: object) -> None:
        """Note that the queue did not take it; the thread may try again."""
        batch = None if queued is None else queued.by_item.pop(id(item), None)
        if batch is not None:
            self._taken[get_ident()] = batch._replace(identity=id(item))

    def _handed_on(self, item: object) -> HandedBatch | None:
        """Return the batch that this thread hands on as an item; None if that is none."""
        batch = self._taken.get(get_ident())
        if batch is None or not self._recorder.is_other_thread() or not batch.is_in(item):
            return None
        del self._taken[get_ident()]
        return batch

    def _iterator_of(self, batch: HandedBatch) -> HandedIterator:
        if batch.loader not in self._iterators:
            self._iterators[batch.loader] = HandedIterator(batch.loader)
        return self._iterators[batch.loader]

    def _getting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        @skipped_by_warnings
        def get(self: Any, *args: Any, **kwargs: Any) -> Any:
            began_ns, waiting = monotonic_ns(), self.qsize()
            request = handed.requested_of_queue(self, waiting)
            try:
                item = original(self, *args, **kwargs)
            except BaseException as error:
                handed.raised(request, error)
                raise
            handed.got_from_queue(self, request or (began_ns, waiting), item)
            return item

        handed = self
        return get

    @guarded
    def requested_of_queue(self, of_queue: Any, waiting: int) -> _Request | None:
        """Record that a queue with batches is asked for one; None: not by the training thread."""
        queued: _QueuedBatches | None = of_queue.__dict__.get(_ATTRIBUTE)
        return None if queued is None else self._requested(queued.iterator, waiting)

    def _requested(
        self, iterator: HandedIterator, waiting: int, at_ns: int | None = None
    ) -> _Request | None:
        if self._recorder.is_other_thread():
            return None
        iterator.waiting = waiting
        began = self._recorder.fetch_began(iterator, at_ns)
        return None if began is None else (iterator, began)

    @guarded
    def raised(self, request: _Request | None, error: BaseException) -> None:
        """Record that a request ended with an error, as that a queue is still empty."""
        if request is not None:
            self._recorder.fetch_raised(*request, error)

    @guarded
    def got_from_queue(
        self, of_queue: Any, request: _Request | tuple[int, int], item: object
    ) -> None:
        """Record what a queue has brought.

        Args:
            of_queue: The queue.
            request: As it was recorded; or where it was not, when it began, and how many items
                waited: whether a queue brings batches is known once the first one has come.
            item: What has come.
        """
        queued: _QueuedBatches | None = of_queue.__dict__.get(_ATTRIBUTE)
        batch = None if queued is None else queued.by_item.pop(id(item), None)
        if isinstance(request[0], HandedIterator):
            self._got(request, batch, item)
        elif batch is not None:
            began_ns, waiting = request
            self._got(self._requested(self._iterator_of(batch), waiting, began_ns), batch, item)

    def _got(self, request: _Request | None, batch: HandedBatch | None, item: object) -> None:
        """Record what has come; None for `batch`: none, such as a mark of the end."""
        if request is not None:
            iterator, began = request
            iterator.came(batch)
            self._recorder.fetch_ended(iterator, began, item, ended=batch is None)
        elif batch is not None and self._recorder.is_other_thread():  # hands it on itself
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
            request = handed.requested_of_future(self, place)
            try:
                value = original(self, *args, **kwargs)
            except BaseException as error:
                handed.raised(request, error)
                raise
            handed.got_from_future(self, place, request, value)
            return value

        handed = self
        return result

    @guarded
    def requested_of_future(self, future: Any, place: _Place) -> _Request | None:
        """Record that a future is asked for its result; None: it is none of interest.

        One that is not done is taken for a batch if the last one was that this place has got.
        """
        batch: HandedBatch | None = future.__dict__.get(_ATTRIBUTE)
        is_done = future.done()
        if batch is not None:
            return self._requested(self._iterator_of(batch), int(is_done))
        iterator = None if is_done else self._places.get(place)
        return None if iterator is None else self._requested(iterator, 0)

    @guarded
    def got_from_future(
        self, future: Any, place: _Place, request: _Request | None, value: object
    ) -> None:
        """Record what a future has brought, and that it does so for this place."""
        batch: HandedBatch | None = future.__dict__.pop(_ATTRIBUTE, None)
        if batch is not None:
            self._places[place] = self._iterator_of(batch)
        self._got(request, batch, value)
