"""Bytes that are read while batches are made, from files and the network, and the time of reads.

The kernel counts what a process gets by `read`. Python's sockets get theirs by `recv`, which it
does not count, so their methods are wrapped once a process makes batches; that costs about 1 us a
call. TLS gets by `read` below them, so its bytes are counted already, encrypted.

Headrace's own storage receives in native code; what arrives is counted where it is handed over.
Other native clients receive unseen.

To time the reads of a file makes opening it dearer. So where a loader's batches open so many files
that it would cost more than a small share of making them, it is done in some batches alone, once a
hundred were made: the rows of the others have no time of reads.
"""

from __future__ import annotations

import functools
import os
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from threading import get_ident
from time import monotonic_ns
from types import ModuleType
from typing import Any, NamedTuple

from headrace.core.import_hooks import after_import
from headrace.observe.probe.file_reads import FileReads
from headrace.observe.probe.recording_session import SESSION
from headrace.observe.probe.sampling_rates import TimingBudget, TimingRate

_FILE_TIMING_BUDGET = TimingBudget(
    at_first=100, one_in=1, early_share=0.0005, share=0.0005, deep_share=0.002
)
_OPEN_NS = 5_000
"""What a file that is timed takes longer, opened and read at once, in workers that decode images:
there the processor's caches hold other things than the probe."""
_SIZE_OF_ANSWER: dict[str, Callable[[Any], int]] = {
    "recv": len,
    "recv_into": int,
    "recvfrom": lambda found: len(found[0]),
    "recvfrom_into": lambda found: int(found[0]),
    "recvmsg": lambda found: len(found[0]),
    "recvmsg_into": lambda found: int(found[0]),
}
"""How many bytes a method's answer stands for."""


class ReceivedTotals(NamedTuple):
    """Sums since the process began.

    Attributes:
        bytes: That came over the network.
        uncounted_bytes: Of these: which the kernel's count of reads leaves out.
        uncounted_reads: The calls that brought them.
    """

    bytes: int = 0
    uncounted_bytes: int = 0
    uncounted_reads: int = 0


class ReadMonitor:
    """Counts what the process receives.

    Threads add to the sums, and each adds what it has worked out before: then no other gets in
    between.

    Attributes:
        thread: That makes a batch now, by its identifier; None: no batch is made, or recorded.
        read_ns: Of the batch at work: time of that thread in reads that are timed. Of one that is
            made: -1 where it was left out.
    """

    def __init__(self) -> None:
        self.thread: int | None = None
        self.read_ns = 0
        self._bytes = self._uncounted_bytes = self._uncounted_reads = 0
        self._hooked = False
        self._file_reads: FileReads | None = None
        self._rhythms: dict[int, TimingRate] = defaultdict(
            partial(TimingRate, _FILE_TIMING_BUDGET)
        )  # by loader
        self._times_files = False  # in the batch at work
        self._timing = False

    @property
    def sums(self) -> ReceivedTotals:
        """What was received until now."""
        return ReceivedTotals(self._bytes, self._uncounted_bytes, self._uncounted_reads)

    def begin(self, loader: int) -> None:
        """This thread begins to make a batch of a loader."""
        if not self._hooked:
            self._hooked = True
            after_import("socket", self._hook_sockets)
            after_import("ssl", self._hook_tls)
            after_import("headrace.data.storage.client.direct", self._hook_storage)
            after_import("headrace.data.loader.shard_dataset", self._hook_samples)
            self._file_reads = FileReads(self._timed, self._is_at_work)
        self._timing = False
        self.read_ns = 0
        self._times_files = self._rhythms[loader].is_due(on=True, deep=SESSION.deep)
        if self._times_files and self._file_reads is not None:
            self._file_reads.begin()
        self.thread = get_ident()

    def end(self) -> None:
        """The batch is made, or it failed."""
        self.thread = None
        if not self._times_files:
            self.read_ns = -1
        if self._file_reads is not None:
            self._file_reads.end()

    def weigh(self, loader: int, made_ns: int) -> None:
        """Look at what timing took of the last batch, one of that loader, made in `made_ns`."""
        if self._times_files and self._file_reads is not None:
            cost_ns = min(self._file_reads.opened * _OPEN_NS, 0.9 * made_ns)
            self._rhythms[loader].weigh(cost_ns / max(made_ns - cost_ns, 1))

    def forked(self) -> None:
        """Begin anew in a forked child, which makes other batches, if any."""
        self.end()
        self._rhythms.clear()

    def _add(self, size_of: Callable[[Any], int], found: Any, counted: bool) -> None:  # noqa: FBT001
        """Add what one call brought; the kernel has counted it, or not."""
        try:  # `guarded` by hand: this is called very often
            size_bytes = size_of(found)
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault("Receiver", error)
            return
        self._bytes += size_bytes
        if not counted:
            self._uncounted_bytes += size_bytes
            self._uncounted_reads += 1

    def _is_at_work(self) -> bool:
        """Whether this thread makes a batch now."""
        return get_ident() == self.thread

    def _timed(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call it, and time it where this thread makes the batch and is in no other such call."""
        if self._timing or get_ident() != self.thread:
            return call(*args, **kwargs)
        self._timing = True
        began_ns = monotonic_ns()
        try:
            return call(*args, **kwargs)
        finally:
            self.read_ns += monotonic_ns() - began_ns
            self._timing = False

    def _hook_sockets(self, module: ModuleType) -> None:
        for name, size_of in _SIZE_OF_ANSWER.items():
            self._hook_socket(module.socket, name, size_of, counted=False)

    def _hook_tls(self, module: ModuleType) -> None:
        self._hook_socket(module.SSLSocket, "read", _size_of, counted=True)

    def _hook_socket(
        self, kind: Any, name: str, size_of: Callable[[Any], int], *, counted: bool
    ) -> None:
        original = getattr(kind, name)

        @functools.wraps(original)
        def receive(sock: Any, *args: Any, **kwargs: Any) -> Any:
            if self.thread is None:
                return original(sock, *args, **kwargs)
            began_ns = monotonic_ns()
            found = original(sock, *args, **kwargs)
            spent_ns = monotonic_ns() - began_ns
            if get_ident() == self.thread and not self._timing:
                self.read_ns += spent_ns
            self._add(size_of, found, counted)
            return found

        setattr(kind, name, receive)

    def _hook_storage(self, module: ModuleType) -> None:
        original = module.DirectClient._get  # noqa: SLF001 - where all that is read comes from

        @functools.wraps(original)
        async def _get(client: Any, target: str, fetch: Any) -> Any:
            found = await original(client, target, fetch)
            self._add(_size_of, found, counted=False)
            return found

        module.DirectClient._get = _get  # noqa: SLF001

    def _hook_samples(self, module: ModuleType) -> None:
        reader = module.SampleReader
        fetched, arrived = reader._fetched, reader._arrived  # noqa: SLF001 - where it waits

        @functools.wraps(fetched)
        def _fetched(self_: Any, *args: Any) -> Any:
            return self._timed(fetched, self_, *args)

        @functools.wraps(arrived)
        def _arrived(*args: Any) -> Any:
            return self._timed(arrived, *args)

        reader._fetched, reader._arrived = _fetched, staticmethod(_arrived)  # noqa: SLF001


def _size_of(found: Any) -> int:
    """Return how many bytes an answer is: a number of them, a part of an object, a range, none."""
    data = getattr(found, "data", found)
    if isinstance(data, int):
        return data
    return len(data) if isinstance(data, bytes | bytearray | memoryview) else 0


READ_MONITOR = ReadMonitor()
os.register_at_fork(
    after_in_child=READ_MONITOR.forked
)  # a pool that a dataset starts makes no batch
