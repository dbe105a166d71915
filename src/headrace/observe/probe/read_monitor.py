"""Reads while a batch is made: bytes from files and the network, and the time of these reads.

The kernel counts what a process gets by `read`. Python's sockets use `recv`, which it does not
count, so their methods are wrapped once a process makes batches; that costs about 1 us a call. TLS
uses `read` below them, so its bytes are counted already, encrypted.

Headrace's own storage receives in native code; its bytes are counted where they are handed over.
Those of other native clients are not seen.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns
from types import ModuleType
from typing import Any, NamedTuple

from headrace.core.import_hooks import after_import
from headrace.core.loader_hooks import LOADER_HOOKS
from headrace.observe.probe.file_reads import FileReads, FileTimingRates
from headrace.observe.probe.recording_session import SESSION

_SIZE_OF_ANSWER: dict[str, Callable[[Any], int]] = {
    "recv": len,
    "recv_into": int,
    "recvfrom": lambda answer: len(answer[0]),
    "recvfrom_into": lambda answer: int(answer[0]),
    "recvmsg": lambda answer: len(answer[0]),
    "recvmsg_into": lambda answer: int(answer[0]),
}
"""Bytes received, by a socket method's return value."""


class ReceivedTotals(NamedTuple):
    """Totals received over the network since the process began."""

    bytes: int = 0
    uncounted_bytes: int = 0  # of these, what the kernel's count of reads leaves out
    uncounted_reads: int = 0


class ReadMonitor:
    """Counts what the process receives, and times reads of the batch that `thread` makes, if any.

    Threads add to the totals in one operation each, with what they computed before, so that no
    update is lost. `read_ns` is -1 after a batch whose reads were not timed.
    """

    def __init__(self) -> None:
        self.thread: int | None = None
        self.read_ns = 0
        self._bytes = self._uncounted_bytes = self._uncounted_reads = 0
        self._hooked = False
        self._file_reads: FileReads | None = None
        self._timing_rates = FileTimingRates()
        self._times_files = False  # in the current batch
        self._timing = False

    @property
    def sums(self) -> ReceivedTotals:
        """What was received until now."""
        return ReceivedTotals(self._bytes, self._uncounted_bytes, self._uncounted_reads)

    def begin(self, loader: int) -> None:
        """Begin to observe a batch of a loader, made by this thread."""
        if not self._hooked:
            self._hooked = True
            after_import("socket", self._hook_sockets)
            after_import(
                "ssl", lambda ssl: self._hook_socket(ssl.SSLSocket, "read", _size_of, counted=True)
            )
            LOADER_HOOKS.reads = self
            self._file_reads = FileReads(self.timed, self._is_at_work)
        self._timing = False
        self.read_ns = 0
        self._times_files = self._timing_rates.is_due(loader, deep=SESSION.deep)
        if self._times_files and self._file_reads is not None:
            self._file_reads.begin()
        self.thread = get_ident()

    def end(self) -> None:
        """End it: the batch is made, or it failed."""
        self.thread = None
        if not self._times_files:
            self.read_ns = -1
        if self._file_reads is not None:
            self._file_reads.end()

    def weigh(self, loader: int, made_ns: int) -> None:
        """Adapt how often files are timed to the cost in the last batch, made in `made_ns`."""
        if self._times_files and self._file_reads is not None:
            self._timing_rates.weigh(loader, self._file_reads.opened, made_ns)

    def forked(self) -> None:
        """Start again in a forked child."""
        self.end()
        self._timing_rates.forget()

    def _add(self, size_of: Callable[[Any], int], answer: Any, counted: bool) -> None:  # noqa: FBT001
        """Add what one call received; `counted` says whether the kernel counts it."""
        try:  # `guarded` by hand, as this is called very often
            size_bytes = size_of(answer)
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault("Receiver", error)
            return
        self._bytes += size_bytes
        if not counted:
            self._uncounted_bytes += size_bytes
            self._uncounted_reads += 1

    def _is_at_work(self) -> bool:
        """Return whether this thread makes a batch now."""
        return get_ident() == self.thread

    def timed(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, timed if this thread makes the batch and is in no other timed call."""
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

    def _hook_socket(
        self, kind: Any, name: str, size_of: Callable[[Any], int], *, counted: bool
    ) -> None:
        original = getattr(kind, name)

        @functools.wraps(original)
        def receive(sock: Any, *args: Any, **kwargs: Any) -> Any:
            if self.thread is None:
                return original(sock, *args, **kwargs)
            began_ns = monotonic_ns()
            answer = original(sock, *args, **kwargs)
            spent_ns = monotonic_ns() - began_ns
            if get_ident() == self.thread and not self._timing:
                self.read_ns += spent_ns
            self._add(size_of, answer, counted)
            return answer

        setattr(kind, name, receive)

    def received(self, answer: Any) -> None:
        """Add what one answer of object storage holds."""
        self._add(_size_of, answer, counted=False)


def _size_of(answer: Any) -> int:
    """Return the bytes of a storage answer: a count, bytes, a part of an object, or 0."""
    data = getattr(answer, "data", answer)
    if isinstance(data, int):
        return data
    return len(data) if isinstance(data, bytes | bytearray | memoryview) else 0


READ_MONITOR = ReadMonitor()
# A process pool of a dataset makes no batches.
os.register_at_fork(after_in_child=READ_MONITOR.forked)
