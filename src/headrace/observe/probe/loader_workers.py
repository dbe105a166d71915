"""The workers of a torch loader, as their rank meets them: their start, their queue of batches.

A batch of tensors comes from a torch worker as handles: reading them, fetching each from the worker
and mapping the memory behind it takes the rank's time however early the batch was made. Part of it
is the rank's own CPU time; the rest is waiting for the worker, which answers late while it runs
Python. Where a thread pins memory, that thread takes the batches, and these times are unknown.
"""

from __future__ import annotations

import functools
import multiprocessing
import select
from collections.abc import Callable
from time import monotonic_ns, thread_time_ns
from types import ModuleType
from typing import Any

from headrace.core.warning_frames import skipped_by_warnings
from headrace.observe.probe.recording_session import SESSION

_QUEUE_POLL_ATTRIBUTE = "_headrace_asked"  # of iterators: polls their queue for a batch


def start_method() -> str:
    """Return how this process starts others, where nobody says it: fork, spawn, forkserver.

    Python's default is the first of all methods, forkserver from 3.14 on. To ask
    `get_start_method` for it would fix it, and the script could choose no other.
    """
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


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


_QUEUE_READS_ATTRIBUTE = "_headrace_receipts"  # attribute of iterators


class _QueueReads:
    """Times of reading the queue of one iterator."""

    __slots__ = ("began_cpu_ns", "began_ns", "spent_cpu_ns", "spent_ns")

    def __init__(self) -> None:
        # When reading the current batch began, 0 if none is being read; the thread's CPU time then.
        self.began_ns = self.began_cpu_ns = 0
        self.spent_ns = self.spent_cpu_ns = -1  # in reads since it was last queried; -1: unknown


def time_queue_reads(
    module: ModuleType, iterator_class: str = "_MultiProcessingDataLoaderIter"
) -> None:
    """Time how long iterators of a class take to read batches from their workers."""
    kind = getattr(module, iterator_class)
    original = kind._try_get_data  # noqa: SLF001 - no public way

    @functools.wraps(original)
    @skipped_by_warnings
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

        @skipped_by_warnings
        def _recv_bytes(*args: Any, **kwargs: Any) -> Any:
            # No reference to the iterator: a cycle would keep its workers alive.
            reads.began_ns, reads.began_cpu_ns = monotonic_ns(), thread_time_ns()
            return read(*args, **kwargs)

        queue._recv_bytes = _recv_bytes  # noqa: SLF001 - no public way
        reads.spent_ns = reads.spent_cpu_ns = 0
    except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
        SESSION.fault("receipts", error)
    return reads
