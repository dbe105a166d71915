"""What the probe keeps of an iterator of a loader: whose it is, its batches, reads of its queue."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from headrace.observe.probe.batch_samples import FEW_COLUMNS, has_one_row, samples_in
from headrace.observe.probe.sampler_reads import SamplerReads

Poll = Callable[[int], object]
"""Returns something true if the queue has a batch; waits for so many milliseconds."""
PollFactory = Callable[[Any], Poll]
ReadyCount = Callable[[Any], int]
"""Returns how many batches wait in an iterator; -1 where it has no workers."""
_STATE_ATTRIBUTE = "_headrace_state"
"""Of iterators, and None of their hooked classes. Hooks that run at each step do not use `getattr`,
which takes twice as long as `iterator._headrace_state`."""


class IteratorState:
    """What is known of one iterator; it holds no reference to it, which would be a cycle.

    Attributes:
        loader: The number of its loader; -1 where unknown.
        epoch: The iteration of that loader, from 0.
        fetches: The batches that were asked for in this epoch; -1 where they are not counted.
        is_own: Whether it is Headrace's own, which counts samples and the plan's time itself.
        read_ns: Time of queue reads since it was last taken; -1 where unknown.
        read_cpu_ns: The CPU time in them.
        sampler: The reads of its sampler; None where they are not recorded.
    """

    __slots__ = (
        "began_cpu_ns", "began_ns", "epoch", "fetches", "is_own", "is_timed", "loader",
        "read_cpu_ns", "read_ns", "ready", "sampler",
    )  # fmt: skip

    def __init__(self, *, is_own: bool = False) -> None:
        self.loader, self.epoch, self.fetches = -1, 0, -1
        self.is_own = is_own
        self.ready: ReadyCount = uncounted  # counts its batches that wait
        self.is_timed = False  # its queue's reads, as far as they can be
        # When reading the current batch began, 0 if none is being read; the thread's CPU time then.
        self.began_ns = self.began_cpu_ns = 0
        self.read_ns = self.read_cpu_ns = -1
        self.sampler: SamplerReads | None = None

    def begin_epoch(self, loader: int, epoch: int) -> None:
        """Count its batches anew, as those of an epoch of a loader."""
        self.loader, self.epoch, self.fetches = loader, epoch, 0


def uncounted(_: object) -> int:
    """Stand for the function that counts an iterator's batches, until it is used."""
    return -1


def prepare_class(iterator_class: Any) -> None:
    """Have hooks find None where an iterator of a class has no state yet."""
    setattr(iterator_class, _STATE_ATTRIBUTE, None)


def known_state(iterator: Any) -> IteratorState | None:
    """Return what is kept of an iterator; None if nothing is yet."""
    state: IteratorState | None = getattr(iterator, _STATE_ATTRIBUTE, None)
    return state


def state_of(iterator: Any) -> IteratorState:
    """Return what is kept of an iterator, from now on if nothing was yet.

    Nothing is kept of one that takes no attributes, such as a list's.
    """
    state = known_state(iterator)
    if state is None:
        state = IteratorState(is_own=hasattr(iterator, "take_order_ns"))
        with suppress(AttributeError):
            setattr(iterator, _STATE_ATTRIBUTE, state)
    return state


def ready_count(iterator: Any, new_poll: PollFactory) -> ReadyCount:
    """Return a function that counts the batches that wait in an iterator.

    They are those in its queue, or where there is none, those that came before their turn. A poll
    is a system call: it is made only where the queue's own count does not say whether one is there.

    The function is called at each step, with the iterator, to which it holds no reference.
    """
    if getattr(iterator, "_task_info", None) is None:
        return _no_workers
    poll, free, most = new_poll(iterator), *_queue_room(iterator)
    # Each worker may still be writing its last one.
    most_unwritten = getattr(iterator, "_num_workers", most)
    surely = most - most_unwritten  # with less room than that, one is there

    def ready(iterator: Any) -> int:
        if free is not None:
            left = free()
            if left < surely or (left < most and poll(0)):
                return most - left
        elif poll(0):
            return 1
        tasks = iterator._task_info  # noqa: SLF001 - no public way
        if len(tasks) == iterator._tasks_outstanding:  # noqa: SLF001 - as above
            return 0
        return sum(len(task) == 2 for task in tasks.values())  # taken before their turn

    return ready


def _no_workers(_: object) -> int:
    return -1


def _queue_room(iterator: Any) -> tuple[Callable[[], int] | None, int]:
    """Return what tells how many more batches an iterator's queue takes, and how many it takes.

    A worker counts a batch there as it puts it, and the rank as it has read it: see `qsize`, which
    calls more functions. None: the queue has no such count, or the system does not tell it (macOS).
    """
    try:
        queue = iterator._data_queue  # noqa: SLF001 - no public way
        free: Callable[[], int] = queue._sem._semlock._get_value  # noqa: SLF001 - as above
        free()
        return free, int(queue._maxsize)  # noqa: SLF001 - as above
    except (AttributeError, NotImplementedError, OSError):  # such as a pinning thread's queue
        return None, 0


def delivered(iterator: Any, state: IteratorState, batch: Any, *, ended: bool) -> tuple[int, int]:
    """Return the samples of a batch that an iterator has just delivered, and its sampler's time.

    The time is in ns since the last call. -1 is what is unknown; `ended`: there is no batch.
    """
    reads = state.sampler
    if reads is None:
        return _delivered_without_sampler(iterator, state, batch, ended=ended)
    spent_ns, reads.spent_ns = reads.spent_ns, 0
    if ended:
        return 0, spent_ns
    if reads.stream_batch is None:
        return indexed_samples(iterator, reads, batch), spent_ns
    return stream_samples(reads, batch), spent_ns


def indexed_samples(iterator: Any, reads: SamplerReads, batch: object) -> int:
    """Return the samples of a map-style dataset's batch that has just come; -1 if unknown."""
    size = reads.delivered(getattr(iterator, "_rcvd_idx", 1) - 1)
    if size >= 0:
        return size
    # Without collation, an index of a map-style dataset may be one sample or a whole batch.
    return samples_in(batch) if iterator._auto_collation else -1  # noqa: SLF001 - no public way


def stream_samples(reads: SamplerReads, batch: Any) -> int:
    """Return the samples of an iterable dataset's batch; -1 if unknown."""
    asked_for = reads.stream_batch
    # Where a batch of the usual kind begins with an array of so many samples, no other part can say
    # another number, and most batches of a stream are so.
    try:
        kind = type(batch)
        if kind is list or kind is tuple:
            is_as_asked = batch[0].shape[0] == asked_for and len(batch) <= FEW_COLUMNS
        elif kind is dict:
            is_as_asked = next(iter(batch.values())).shape[0] == asked_for
        else:
            is_as_asked = batch.shape[0] == asked_for
    except Exception:  # noqa: BLE001 - no array, a scalar, or a nested tensor, without a shape
        is_as_asked = False
    if is_as_asked and asked_for is not None:
        reads.is_by_rows = True
        return asked_for
    return _samples_of_other_stream(reads, batch)


def _samples_of_other_stream(reads: SamplerReads, batch: object) -> int:
    """Return the samples of a stream's batch that begins with no array of as many as asked for."""
    asked_for = -1 if reads.stream_batch is None else reads.stream_batch
    reads.is_by_rows = reads.is_by_rows or samples_in(batch) == asked_for
    found = samples_in(batch, asked_for)
    # One row may be one sample, at the end, or all of them in a sequence, as packed by collating.
    is_packed = found == 1 and not reads.is_by_rows and has_one_row(batch)
    return asked_for if is_packed else found


def _delivered_without_sampler(
    iterator: Any, state: IteratorState, batch: object, *, ended: bool
) -> tuple[int, int]:
    """Return the same of an iterator of Headrace's, or of a library's."""
    spent_ns = int(iterator.take_order_ns()) if state.is_own else -1
    if ended:
        return 0, spent_ns
    return (int(iterator.batch_samples) if state.is_own else samples_in(batch)), spent_ns
