"""What taking batches out of the queue of torch's workers costs a rank, apart from waiting for one.

A batch of tensors comes as handles: reading them, asking the worker for each, and mapping the
memory behind it takes a rank's time however early the batch was made. What of it is the rank's own
CPU time stays; the rest is waiting for a worker's answer, which comes late while it runs Python.
Where a thread pins memory, that thread takes batches, and nothing is known here.
"""

from __future__ import annotations

import functools
from time import monotonic_ns, thread_time_ns
from types import ModuleType
from typing import Any

from headrace.observe.probe.session import SESSION

_RECEIPTS = "_headrace_receipts"  # attribute of iterators


class _Receipts:
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


def hook_torch(module: ModuleType) -> None:
    """Time what torch's loader takes from its workers."""
    kind = module._MultiProcessingDataLoaderIter  # noqa: SLF001 - there is no public way
    original = kind._try_get_data  # noqa: SLF001 - likewise

    @functools.wraps(original)
    def _try_get_data(iterator: Any, *args: Any, **kwargs: Any) -> Any:
        if not SESSION.on:
            return original(iterator, *args, **kwargs)
        receipts = getattr(iterator, _RECEIPTS, None) or _watch(iterator)
        receipts.began_ns = 0
        found = original(iterator, *args, **kwargs)
        if receipts.began_ns:
            receipts.spent_ns += monotonic_ns() - receipts.began_ns
            receipts.spent_cpu_ns += thread_time_ns() - receipts.began_cpu_ns
            receipts.began_ns = 0
        return found

    kind._try_get_data = _try_get_data  # noqa: SLF001 - likewise


def receiving_ns(iterator: Any) -> tuple[int, int]:
    """Return what an iterator spent in taking batches since this was asked last: time, CPU time.

    Both are -1 where that is unknown.
    """
    receipts = getattr(iterator, _RECEIPTS, None)
    if receipts is None or receipts.spent_ns < 0:
        return -1, -1
    spent = receipts.spent_ns, receipts.spent_cpu_ns
    receipts.spent_ns = receipts.spent_cpu_ns = 0
    return spent


def _watch(iterator: Any) -> _Receipts:
    """Note when an iterator's queue begins to be read, from now on."""
    receipts = _Receipts()
    setattr(iterator, _RECEIPTS, receipts)
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
