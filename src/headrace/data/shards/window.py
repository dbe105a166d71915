"""Work in threads, results in order, a few ahead of use."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def windowed(
    work: Callable[[_Item], _Result], items: Iterable[_Item], at_once: int
) -> Iterator[_Result]:
    """Yield work(item) for each item, in order.

    Args:
        work: Called in threads.
        items: Taken as they are needed: there may be millions.
        at_once: Threads; twice as many items are begun ahead of use.
    """
    coming: deque[Future[_Result]] = deque()
    threads = ThreadPoolExecutor(at_once, thread_name_prefix="headrace-shards")
    try:
        for item in items:
            coming.append(threads.submit(work, item))
            if len(coming) >= 2 * at_once:
                yield result_of(coming.popleft())
        while coming:
            yield result_of(coming.popleft())
    finally:
        # Not waited for: where the consumer was interrupted, the store may take long to answer.
        threads.shutdown(wait=False, cancel_futures=True)


def result_of(future: Future[_Result]) -> _Result:
    """Return a future's result; unlike `future.result()`, ctrl-C always ends the wait.

    A signal that arrives as the main thread begins to wait for a lock is noticed when the wait
    ends, so it ends every second.
    """
    while not future.done():
        futures.wait([future], timeout=1.0)
    return future.result()
