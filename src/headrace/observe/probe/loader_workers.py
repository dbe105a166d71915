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
from time import monotonic_ns, thread_time_ns
from types import ModuleType
from typing import Any

from headrace.core.warning_frames import skipped_by_warnings
from headrace.observe.probe.iterator_state import IteratorState, Poll, prepare_class, state_of
from headrace.observe.probe.recording_session import SESSION


def start_method() -> str:
    """Return how this process starts others, where nobody says it: fork, spawn, forkserver.

    Python's default is the first of all methods, forkserver from 3.14 on. To ask
    `get_start_method` for it would fix it, and the script could choose no other.
    """
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def queue_poll(iterator: Any) -> Poll:
    """Return a function that polls an iterator's queue for a batch.

    The queue's own `empty` takes ten times as long.
    """
    queue = iterator._data_queue  # noqa: SLF001 - no public way
    reader = getattr(queue, "_reader", None)
    poll: Poll
    if reader is None:  # the pinning thread's queue is no pipe

        def poll(_: int) -> bool:
            return not queue.empty()
    else:
        poller = select.poll()
        poller.register(reader.fileno(), select.POLLIN)
        poll = poller.poll
    return poll


def time_queue_reads(
    module: ModuleType, iterator_class: str = "_MultiProcessingDataLoaderIter"
) -> None:
    """Time how long iterators of a class take to read batches from their workers."""
    kind = getattr(module, iterator_class)
    prepare_class(kind)
    original = kind._try_get_data  # noqa: SLF001 - no public way

    @functools.wraps(original)
    @skipped_by_warnings
    def _try_get_data(iterator: Any, *args: Any, **kwargs: Any) -> Any:
        if not SESSION.switch_mode[0]:
            return original(iterator, *args, **kwargs)
        state = iterator._headrace_state  # noqa: SLF001 - see `prepare_class`
        if state is None or not state.is_timed:
            state = _time_queue(iterator)
        state.began_ns = 0
        found = original(iterator, *args, **kwargs)
        if state.began_ns:
            state.read_ns += monotonic_ns() - state.began_ns
            state.read_cpu_ns += thread_time_ns() - state.began_cpu_ns
            state.began_ns = 0
        return found

    kind._try_get_data = _try_get_data  # noqa: SLF001 - no public way


def _time_queue(iterator: Any) -> IteratorState:
    """Record from now on when reading an iterator's queue begins."""
    state = state_of(iterator)
    state.is_timed = True
    try:
        queue = iterator._data_queue  # noqa: SLF001 - no public way
        read = getattr(queue, "_recv_bytes", None)
        if read is None:  # a thread that pins memory takes the batches
            return state

        @skipped_by_warnings
        def _recv_bytes(*args: Any, **kwargs: Any) -> Any:
            # No reference to the iterator: a cycle would keep its workers alive.
            state.began_ns, state.began_cpu_ns = monotonic_ns(), thread_time_ns()
            return read(*args, **kwargs)

        queue._recv_bytes = _recv_bytes  # noqa: SLF001 - no public way
        state.read_ns = state.read_cpu_ns = 0
    except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
        SESSION.fault("receipts", error)
    return state
