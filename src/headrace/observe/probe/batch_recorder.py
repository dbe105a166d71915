"""The batch recorder: what making each batch takes, in a worker or in a rank without workers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from headrace.observe.probe.process_usage import read_proc_file
from headrace.observe.probe.read_monitor import READ_MONITOR, ReceivedTotals
from headrace.observe.probe.recording_session import SESSION, guarded
from headrace.observe.probe.transform_timer import TRANSFORM_TIMER
from headrace.records.schema import BATCHES

_IO_READ_EVERY_NS, _IO_READ_LATER_EVERY_NS = 20_000_000, 200_000_000
"""Time between reads of /proc/self/io, early and later: one takes 10 us, or 70 with cold caches.
Bytes read after the last one are in no row, so short-lived processes read it often."""
_FREQUENT_IO_READS = 100


class BatchRecorder:
    """Writes one row of `batches` for each batch that this process makes; hooks add times."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.phase = "idle"
        self._batch_lock = threading.Lock()  # held while a batch is recorded
        self.collate_ns = 0
        self.send_ns = 0
        self._number = 0
        self._ended_ns = 0
        self._read_bytes = self._reads = self._io_reads = self._io_read_ns = 0
        self._received: ReceivedTotals | None = None
        self._owner = os.getpid()

    @guarded
    def began(self, loader: int) -> tuple[int, int, int] | None:
        """Start a batch of a loader and return its clocks; None while another one is recorded."""
        if self._owner != os.getpid():
            self._begin()
        if not self._batch_lock.acquire(blocking=False):
            return None
        try:
            began = self._begun(loader)
        except BaseException:
            self.failed()
            raise
        if began is None:
            self._batch_lock.release()
        return began

    def _begun(self, loader: int) -> tuple[int, int, int] | None:
        if not SESSION.on:
            self._ended_ns = self._io_read_ns = 0  # bytes read while recording is off are in no row
            self._received = None
            return None
        if not self._io_read_ns:
            self._read_since()
        if self._received is None:
            self._received = READ_MONITOR.sums
        READ_MONITOR.begin(loader)
        self.phase = "work"
        self.collate_ns = 0
        return time.monotonic_ns(), time.thread_time_ns(), time.process_time_ns()

    def ended(self, began: tuple[int, int, int], loader: int, samples: int) -> None:
        """Finish the batch and write its row."""
        try:
            cpu_ns, process_cpu_ns = time.thread_time_ns(), time.process_time_ns()
            now_ns = time.monotonic_ns()
            read_ns = self._time_in_reads(loader, now_ns - began[0])
        finally:  # a signal may have raised an error
            self.failed()
        self._write(began, (now_ns, cpu_ns, process_cpu_ns), loader, samples, read_ns)

    def failed(self) -> None:
        """End the batch without a row: an error was raised, or the dataset has ended."""
        # Runs even if recording was switched off during the batch.
        try:
            READ_MONITOR.end()  # before the lock is released to another thread
        finally:  # a signal may have raised an error
            self.phase = "idle"
            if self._batch_lock.locked():  # not locked in a child that was forked during a batch
                self._batch_lock.release()

    @guarded
    def _time_in_reads(self, loader: int, made_ns: int) -> int:
        READ_MONITOR.end()
        READ_MONITOR.weigh(loader, made_ns)
        return READ_MONITOR.read_ns

    @guarded
    def _write(
        self,
        began: tuple[int, int, int],
        ended: tuple[int, int, int],
        loader: int,
        samples: int,
        read_ns: int | None,
    ) -> None:
        now_ns, cpu_ns, process_cpu_ns = ended
        start_ns, cpu_before_ns, process_cpu_before_ns = began
        idle_ns = start_ns - self._ended_ns if self._ended_ns else 0
        SESSION.write(
            BATCHES, SESSION.rank, loader, SESSION.worker, self._number, start_ns,
            now_ns - start_ns, cpu_ns - cpu_before_ns, process_cpu_ns - process_cpu_before_ns,
            samples, *self._all_read_since(), -1 if read_ns is None else read_ns,
            self.collate_ns, idle_ns, self.send_ns,
        )  # fmt: skip
        self._number += 1
        self.send_ns = 0
        self._ended_ns = time.monotonic_ns()

    def collating(self, collate: Callable[..., Any]) -> Callable[..., Any]:
        """Return `collate`, with its time added to the current batch."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began_ns = time.monotonic_ns()
            try:
                if TRANSFORM_TIMER.active:
                    return TRANSFORM_TIMER.call("collate_fn", collate, collate, *args, **kwargs)
                return collate(*args, **kwargs)
            finally:
                self.collate_ns += time.monotonic_ns() - began_ns

        return timed

    def request_phase(self, receive_phase: Callable[[str], None]) -> None:
        """Call `receive_phase` with what the process is doing now."""
        receive_phase(self.phase)

    def _all_read_since(self) -> tuple[int, int, int]:
        """Return bytes and reads since the last batch, and of these the bytes from the network."""
        before, now = self._received or ReceivedTotals(), READ_MONITOR.sums
        self._received = now
        read_bytes, reads = self._read_since()
        return (
            read_bytes + now.uncounted_bytes - before.uncounted_bytes,
            reads + now.uncounted_reads - before.uncounted_reads,
            now.bytes - before.bytes,
        )

    def _read_since(self) -> tuple[int, int]:
        """Return bytes and read calls of this process since a look, 0 if that was just now."""
        now_ns = time.monotonic_ns()
        often = self._io_reads < _FREQUENT_IO_READS
        if now_ns - self._io_read_ns < (_IO_READ_EVERY_NS if often else _IO_READ_LATER_EVERY_NS):
            return 0, 0
        self._io_reads, self._io_read_ns = self._io_reads + 1, now_ns
        read_bytes, reads = self._read_bytes, self._reads
        with suppress(OSError, ValueError, IndexError):
            words = read_proc_file("/proc/self/io").split()  # rchar: 1 wchar: 2 syscr: 3 ...
            self._read_bytes, self._reads = int(words[1]), int(words[5])
        return self._read_bytes - read_bytes, max(self._reads - reads - 1, 0)


BATCH_RECORDER = BatchRecorder()
