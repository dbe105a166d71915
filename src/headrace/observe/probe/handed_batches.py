"""Batches that another thread takes from a loader and hands on to the training thread.

As background generators do by a queue, and pools of threads, which are asked for the next batch, by
a future. The training thread then waits for the queue or the future, and not in the loader's
iterator: each such wait is recorded as its request for a batch of that loader. The hooks do nothing
before such a thread takes a batch.
"""

from __future__ import annotations

import functools
import queue
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from math import prod
from threading import get_ident
from time import monotonic_ns
from typing import Any, NamedTuple

from headrace.core.warning_frames import skipped_by_warnings
from headrace.observe.probe.iterator_state import IteratorState, delivered, known_state
from headrace.observe.probe.rank_recorder import FetchBegan, RankRecorder
from headrace.observe.probe.recording_session import guarded

_ATTRIBUTE = "_headrace_batches"
"""Of queues, the batches in them; of futures, those that they bring."""
_FUTURES = ("/concurrent/futures/", "/asyncio/")
"""Code that asks futures for what others want of them."""
_MOST_TAKEN, _MOST_PARTS, _MOST_STALE = 16, 64, 64
Place = tuple[object, int]
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
        shapes: Of the arrays in it.
    """

    loader: int
    epoch: int
    number: int
    samples: int
    sampler_ns: int
    identity: int
    shapes: list[tuple[int, ...]]

    def resembles(self, item: object, *, in_known_queue: bool) -> bool:
        """Return whether another object may have been made of it, such as on a device.

        It has as many arrays. Where it is not known yet that the queue brings batches, they have
        as many elements, or are several with as many samples: others may be a model's outputs.
        """
        shapes = _shapes_in(item)
        if not shapes or len(shapes) != len(self.shapes):
            return False
        if in_known_queue or sorted(map(prod, shapes)) == sorted(map(prod, self.shapes)):
            return True
        return len(shapes) > 1 and all(shape[:1] == (self.samples,) for shape in shapes)


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

    def came(self, batch: HandedBatch | None) -> IteratorState:
        """Note what the training thread has got, and return what is known of it; None: no batch."""
        state = self._headrace_state
        self.batch_samples, self._sampler_ns, state.fetches = 0, -1, -1
        if batch is not None:
            self.batch_samples, self._sampler_ns = batch.samples, batch.sampler_ns
            state.epoch, state.fetches = batch.epoch, batch.number
        return state

    def take_order_ns(self) -> int:
        """Return the time of the sampler for the batch that came last; -1 if unknown."""
        return self._sampler_ns


def _waiting(iterator: HandedIterator) -> int:
    return iterator.waiting


Request = tuple[HandedIterator, FetchBegan]
"""A request of the training thread's for a batch: of which loader, and what `fetch_ended` needs."""


class _QueuedBatches:
    """The batches in a queue, by the identity of the item that they are in."""

    def __init__(self) -> None:
        self._by_item: defaultdict[int, deque[list[HandedBatch]]] = defaultdict(deque)
        self._last: HandedBatch | None = None
        self.has_ended = False  # since the last batch

    def put(self, item: object, batches: list[HandedBatch], of_queue: Any) -> None:
        """Note an item that is about to be put in a queue."""
        self._last, self.has_ended = batches[-1], False
        waiting = _items_of(of_queue)
        if len(self._by_item) > len(waiting) + _MOST_STALE:  # it was emptied in another way
            self._by_item.clear()
        held = self._by_item[id(item)]
        if held and not any(each is item for each in waiting):  # of another object, at its place
            held.clear()
        held.append(batches)

    def take(self, item: object) -> list[HandedBatch]:
        """Return the batches in an item, which is put or got, and forget them."""
        held = self._by_item.get(id(item))
        if not held:
            return []
        batches = held.popleft()
        if not held:
            del self._by_item[id(item)]
        return batches

    def expected(self, of_queue: Any) -> HandedBatch | None:
        """Return the batch that is got next, of the items that wait; else the one put last."""
        waiting = _items_of(of_queue)
        held = self._by_item.get(id(waiting[0])) if waiting else None
        return held[0][0] if held else self._last


def _items_of(of_queue: Any) -> list[object]:
    """Return the items that wait in a queue, in its order; none where it has them elsewhere."""
    items = getattr(of_queue, "queue", None)
    return list(items) if isinstance(items, (deque, list)) else []


class HandedBatches:
    """Follows batches from the threads that take them to the training thread.

    Attributes:
        is_active: Another thread than the training one has taken a batch.
    """

    def __init__(self, recorder: RankRecorder) -> None:
        self.is_active = False
        self._recorder = recorder
        # By the thread that has not handed them on yet; the latest come last.
        self._taken: dict[int, deque[HandedBatch]] = {}
        self._iterators: dict[int, HandedIterator] = {}  # by loader
        self._places: dict[Place, HandedIterator] = {}  # that have got batches of futures

    def hook(self) -> None:
        """Hook Python's queues and futures."""
        hooked: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
            (queue.Queue, "put", self._putting),
            (queue.Queue, "get", self._getting),
            (Future, "set_result", self._setting),
            (Future, "result", self._resulting),
        )
        for owner, name, hooking in hooked:
            setattr(owner, name, hooking(getattr(owner, name)))

    @guarded
    def taken(self, iterator: Any, batch: object) -> None:
        """Note a batch that a thread has taken, if another one trains.

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
        self.is_active = True
        shapes = _shapes_in(batch)
        self._add(
            [HandedBatch(state.loader, state.epoch, number, samples, sampler_ns, id(batch), shapes)]
        )

    def _handed_on(self, item: object, *, in_known_queue: bool = False) -> list[HandedBatch]:
        """Return the batches that this thread hands on as an item, in the order of being taken."""
        taken = self._taken.get(get_ident())
        if not taken or not self._recorder.is_other_thread():
            return []
        identities = {id(item), *(id(part) for part in _parts_of(item))}
        found = [batch for batch in taken if batch.identity in identities]
        if not found and taken[-1].resembles(item, in_known_queue=in_known_queue):
            found = [taken[-1]]
        if found:
            taken.clear()
        return found

    def _takes_over(self, item: object, batches: Iterable[HandedBatch]) -> None:
        """Note that this thread has got batches as an item, which it may hand on."""
        self._add([batch._replace(identity=id(item)) for batch in batches])

    def _add(self, batches: Sequence[HandedBatch]) -> None:
        """Note batches that this thread has; of other ones at their place nothing is left."""
        identities = {batch.identity for batch in batches}
        known = self._taken.get(get_ident(), ())
        kept = [batch for batch in known if batch.identity not in identities]
        self._taken[get_ident()] = deque([*kept, *batches], maxlen=_MOST_TAKEN)

    def _iterator_of(self, batch: HandedBatch) -> HandedIterator:
        if batch.loader not in self._iterators:
            self._iterators[batch.loader] = HandedIterator(batch.loader)
        return self._iterators[batch.loader]

    def _putting(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        @skipped_by_warnings
        def put(self: Any, item: object, *args: Any, **kwargs: Any) -> None:
            if not handed.is_active:
                original(self, item, *args, **kwargs)
                return
            handed.puts(self, item)
            try:
                original(self, item, *args, **kwargs)
            except BaseException:  # such as that it is full
                handed.not_put(self, item)
                raise

        handed = self
        return put

    @guarded
    def puts(self, of_queue: Any, item: object) -> None:
        """Note that an item is about to be put in a queue."""
        queued: _QueuedBatches | None = of_queue.__dict__.get(_ATTRIBUTE)
        batches = self._handed_on(item, in_known_queue=queued is not None)
        if batches:
            if queued is None:
                queued = of_queue.__dict__[_ATTRIBUTE] = _QueuedBatches()
            queued.put(item, batches, of_queue)

    @guarded
    def not_put(self, of_queue: Any, item: object) -> None:
        """Note that the queue did not take it; the thread may try again."""
        queued: _QueuedBatches | None = of_queue.__dict__.get(_ATTRIBUTE)
        if queued is not None:
            self._add(queued.take(item))

    def _getting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        @skipped_by_warnings
        def get(self: Any, *args: Any, **kwargs: Any) -> Any:
            began_ns = monotonic_ns()
            request = handed.requested_of_queue(self) if handed.is_active else None
            try:
                item = original(self, *args, **kwargs)
            except BaseException as error:
                handed.raised(request, error)
                raise
            if handed.is_active:  # the first batch may have come meanwhile
                handed.got_from_queue(self, request, item, began_ns)
            return item

        handed = self
        return get

    @guarded
    def requested_of_queue(self, of_queue: Any) -> Request | None:
        """Record that a queue with batches is asked for one; None: not by the training thread."""
        queued: _QueuedBatches | None = of_queue.__dict__.get(_ATTRIBUTE)
        if queued is None or self._recorder.is_other_thread():
            return None
        expected = queued.expected(of_queue)
        if expected is None:
            return None
        return self._requested(self._iterator_of(expected), len(_items_of(of_queue)))

    def _requested(
        self, iterator: HandedIterator, waiting: int, at_ns: int | None = None
    ) -> Request | None:
        if self._recorder.is_other_thread():
            return None
        self._recorder.gets_handed_batches()
        iterator.waiting = waiting
        began = self._recorder.fetch_began(iterator, at_ns)
        return None if began is None else (iterator, began)

    @guarded
    def raised(self, request: Request | None, error: BaseException) -> None:
        """Record that a request ended with an error, as that a queue is still empty."""
        if request is not None:
            self._recorder.fetch_raised(*request, error)

    @guarded
    def got_from_queue(
        self, of_queue: Any, request: Request | None, item: object, began_ns: int
    ) -> None:
        """Record what a queue has brought: a batch, a mark of the end, or something else.

        Args:
            of_queue: The queue.
            request: As it was recorded; whether a queue brings batches is not known before one has
                come.
            item: What has come.
            began_ns: When the thread asked for it.
        """
        queued: _QueuedBatches | None = of_queue.__dict__.get(_ATTRIBUTE)
        batches = [] if queued is None else queued.take(item)
        if batches and request is None:
            request = self._requested(self._iterator_of(batches[0]), 0, began_ns)
        if queued is None or batches:
            self._got(request, batches, item)
        elif isinstance(item, (tuple, list, dict)) or hasattr(item, "shape") or queued.has_ended:
            self.raised(request, LookupError("no batch that is known"))
        else:
            queued.has_ended = True
            self._got(request, batches, item)

    def _got(self, request: Request | None, batches: list[HandedBatch], item: object) -> None:
        """Record what has come; without batches, that there are no more."""
        if request is not None:
            self._end(request, batches[0] if batches else None, item)
            for batch in batches[1:]:  # which came with it
                further = self._requested(self._iterator_of(batch), 1)
                if further is not None:
                    self._end(further, batch, item)
        elif self._recorder.is_other_thread():
            self._takes_over(item, batches)

    def _end(self, request: Request, batch: HandedBatch | None, item: object) -> None:
        iterator, (began_ns, ready, _, follows_step) = request
        if batch is not None:
            iterator = self._iterator_of(batch)  # which may be another one than was expected
        began = (began_ns, ready, iterator.came(batch), follows_step)
        self._recorder.fetch_ended(iterator, began, item, ended=batch is None)

    def _setting(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        @skipped_by_warnings
        def set_result(self: Any, result: object) -> None:
            if handed.is_active:
                handed.sets(self, result)
            original(self, result)

        handed = self
        return set_result

    @guarded
    def sets(self, future: Any, result: object) -> None:
        """Note that a future gets its result."""
        batches = self._handed_on(result)
        if batches:
            future.__dict__[_ATTRIBUTE] = batches

    def _resulting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        @skipped_by_warnings
        def result(self: Any, *args: Any, **kwargs: Any) -> Any:
            request = place = None
            try:
                if not handed.is_active:
                    return original(self, *args, **kwargs)
                place = handed.calling_place()
                request = handed.requested_of_future(self, place)
                try:
                    value = original(self, *args, **kwargs)
                except BaseException as error:
                    handed.raised(request, error)
                    raise
                handed.got_from_future(self, place, request, value)
                return value
            finally:
                # As Python's own does: an error's traceback would hold the future that holds it.
                self = request = place = None

        handed = self
        return result

    @guarded
    def calling_place(self) -> Place | None:
        """Return the line that asks for a future's result, below that of pools and event loops."""
        frame = sys._getframe(2).f_back  # noqa: SLF001 - of who called the hook that calls this
        while frame is not None and any(part in frame.f_code.co_filename for part in _FUTURES):
            frame = frame.f_back
        return None if frame is None else (frame.f_code, frame.f_lineno)

    @guarded
    def requested_of_future(self, future: Any, place: Place | None) -> Request | None:
        """Record that a future is asked for its result; None: it is none of interest.

        One that is not done is taken for a batch if the last one was that this place has got.
        """
        batches: list[HandedBatch] | None = future.__dict__.get(_ATTRIBUTE)
        is_done = future.done()
        if batches is not None:
            return self._requested(self._iterator_of(batches[0]), int(is_done))
        iterator = None if is_done or place is None else self._places.get(place)
        return None if iterator is None else self._requested(iterator, 0)

    @guarded
    def got_from_future(
        self, future: Any, place: Place | None, request: Request | None, value: object
    ) -> None:
        """Record what a future has brought, and whether it does so for this place."""
        if self._recorder.is_other_thread():
            self._takes_over(value, future.__dict__.get(_ATTRIBUTE, ()))
            return
        batches: list[HandedBatch] = future.__dict__.pop(_ATTRIBUTE, [])
        if place is not None and batches:
            self._places[place] = self._iterator_of(batches[0])
        elif place is not None and value is not None:
            self._places.pop(place, None)
        if batches or value is None:
            self._got(request, batches, value)
        else:
            self.raised(request, LookupError("no batch"))


def _parts_of(item: object) -> Iterable[object]:
    """Return the parts of a container, the first ones of many."""
    if isinstance(item, (tuple, list)):
        return item[:_MOST_PARTS]
    return islice(item.values(), _MOST_PARTS) if isinstance(item, dict) else ()


def _shapes_in(item: object) -> list[tuple[int, ...]]:
    """Return the shapes of an item, its parts and theirs that are arrays; of few parts."""
    shapes = (getattr(part, "shape", None) for part in islice(_all_parts_of(item), _MOST_PARTS))
    return [tuple(shape) for shape in shapes if shape is not None]


def _all_parts_of(item: object) -> Iterator[object]:
    """Yield an item, its parts and those of these."""
    yield item
    for part in _parts_of(item):
        yield part
        yield from _parts_of(part)
