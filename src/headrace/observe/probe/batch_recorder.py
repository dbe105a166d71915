"""The batch recorder: what making each batch takes, in a worker or in a rank without workers.

Its hooks stand where torch's loaders make batches; Headrace's own loader notifies an observer.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.core import env
from headrace.core.import_hooks import after_import
from headrace.core.warning_frames import skipped_by_warnings
from headrace.observe.probe import install_hooks
from headrace.observe.probe.batch_samples import collated_samples, fetched_samples
from headrace.observe.probe.loader_workers import start_method
from headrace.observe.probe.loaders import (
    LOADER_OF_THREAD,
    LOADER_REGISTRY,
    STARTING_LOADER,
)
from headrace.observe.probe.process_usage import OwnReads
from headrace.observe.probe.read_monitor import READ_MONITOR, ReceivedTotals
from headrace.observe.probe.recording_session import SESSION, guarded
from headrace.observe.probe.stack_sampler import start_sampler, stop_sampler
from headrace.observe.probe.transform_timer import TRANSFORM_TIMER
from headrace.records.schema import BATCHES


class BatchRecorder:
    """Writes one row of `batches` for each batch that this process makes; hooks add times."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.phase = "idle"
        self._batch_lock = threading.Lock()  # held while a batch is recorded
        self.collate_ns = self.send_ns = self._number = self._ended_ns = 0
        self.collated = -1  # samples that collate_fn got for the current batch; -1 if unknown
        self._reads = OwnReads()
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
            self._ended_ns = 0
            self._reads.pause()  # bytes read while recording is off are in no row
            self._received = None
            return None
        self._reads.begin(time.monotonic_ns())
        if self._received is None:
            self._received = READ_MONITOR.sums
        READ_MONITOR.begin(loader)
        self.phase = "work"
        self.collate_ns, self.collated = 0, -1
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

        @skipped_by_warnings
        def timed(*args: Any, **kwargs: Any) -> Any:
            began_ns = time.monotonic_ns()
            self.collated = collated_samples(args)
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
        read_bytes, reads = self._reads.since(time.monotonic_ns())
        return (
            read_bytes + now.uncounted_bytes - before.uncounted_bytes,
            reads + now.uncounted_reads - before.uncounted_reads,
            now.bytes - before.bytes,
        )


BATCH_RECORDER = BatchRecorder()


def hook_workers() -> None:
    """Install the hooks; torch is imported, its data package perhaps not yet."""
    after_import("torch.utils.data._utils.worker", _hook_worker_loop)
    after_import("torch.utils.data._utils.fetch", _hook_fetchers)
    after_import("torchdata.stateful_dataloader.worker", _hook_worker_loop)


def _hook_worker_loop(module: Any) -> None:
    module._worker_loop = _WorkerLoop(module._worker_loop)  # noqa: SLF001 - runs in workers
    if hasattr(module, "ManagerWatchdog"):
        _hook_watchdog(module)


class _WorkerLoop:
    """torch's worker loop, recorded.

    A forked worker knows its loader from its parent's context variable. A worker that is spawned,
    or forked by a fork server, gets the pickled loop, and the loader's number with it.
    """

    def __init__(self, original: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self._original = original

    @skipped_by_warnings
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _begin_worker(self._original, args, kwargs)
        try:
            return self._original(*args, **kwargs)
        finally:
            end_worker()

    def __reduce__(self) -> tuple[Callable[[int, int, str], Any], tuple[int, int, str]]:
        return _worker_loop_of, (STARTING_LOADER.get(), SESSION.rank, self._original.__module__)


def _worker_loop_of(loader: int, rank: int, module: str) -> Any:
    """Return a module's loop for a worker of that loader and rank, in the worker's process."""
    worker: Any = importlib.import_module(module)
    if not isinstance(worker._worker_loop, _WorkerLoop):  # noqa: SLF001 - no public way
        install_hooks()  # not installed at start, as the script changed PYTHONPATH
    STARTING_LOADER.set(loader)
    SESSION.works_for(rank)
    return worker._worker_loop  # noqa: SLF001 - no public way


def _hook_watchdog(module: Any) -> None:
    """Let a worker notice, and end, if its rank was killed before the worker had begun.

    torch takes the worker's parent at the start of its loop for the rank. The probe's start comes
    before that, so without this it would leave more orphans.
    """
    original = module.ManagerWatchdog

    class ManagerWatchdog(original):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            _watch_rank(self)

    module.ManagerWatchdog = ManagerWatchdog


@guarded
def _watch_rank(watchdog: Any) -> None:
    rank = multiprocessing.parent_process()
    if rank is not None and not _is_from_a_fork_server():
        watchdog.manager_pid = rank.pid


def _is_from_a_fork_server() -> bool:
    """Return whether this process is a child of multiprocessing's fork server."""
    chosen = getattr(multiprocessing.current_process(), "_start_method", None)
    return (chosen or start_method()) == "forkserver"


@guarded
def _begin_worker(loop: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    import inspect

    number = int(inspect.signature(loop).bind(*args, **kwargs).arguments["worker_id"])
    SESSION.become_worker(STARTING_LOADER.get(), number, SESSION.rank)
    _time_sending()
    start_sampler(BATCH_RECORDER.request_phase)


@guarded
def end_worker() -> None:
    """Close the recording of a worker of either loader."""
    stop_sampler()
    TRANSFORM_TIMER.flush()
    SESSION.close()


def _time_sending() -> None:
    """Time the thread that pickles batches and copies their tensors to shared memory."""
    from multiprocessing import queues

    pickler = queues._ForkingPickler  # type: ignore[attr-defined]  # noqa: SLF001

    class TimedPickler(pickler):  # type: ignore[misc, valid-type]
        """The pickler of queues, timed."""

        @classmethod
        @skipped_by_warnings
        def dumps(cls, obj: Any, protocol: Any = None) -> Any:
            """Pickle as the original does."""
            began_ns = time.monotonic_ns()
            try:
                return pickler.dumps(obj, protocol)
            finally:
                BATCH_RECORDER.send_ns += time.monotonic_ns() - began_ns

    queues._ForkingPickler = TimedPickler  # type: ignore[attr-defined]  # noqa: SLF001


def _hook_fetchers(module: Any) -> None:
    _hook_fetch(module._MapDatasetFetcher)  # noqa: SLF001
    _hook_fetch(module._IterableDatasetFetcher)  # noqa: SLF001
    fetcher_class = module._BaseDatasetFetcher  # noqa: SLF001
    original = fetcher_class.__init__

    @functools.wraps(original)
    @skipped_by_warnings
    def __init__(fetcher: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(fetcher, *args, **kwargs)
        fetcher.collate_fn = BATCH_RECORDER.collating(fetcher.collate_fn)

    fetcher_class.__init__ = __init__


def _hook_fetch(fetcher_class: Any) -> None:
    original = fetcher_class.fetch

    @functools.wraps(original)
    @skipped_by_warnings
    def fetch(fetcher: Any, possibly_batched_index: Any) -> Any:
        loader = _loader_at_work()
        began = BATCH_RECORDER.began(loader)
        if began is None:
            return original(fetcher, possibly_batched_index)
        try:
            with TRANSFORM_TIMER.timing_if_due(fetcher.dataset, loader):
                batch = original(fetcher, possibly_batched_index)
            collated = BATCH_RECORDER.collated
            samples = fetched_samples(fetcher, possibly_batched_index, batch, collated)
        except BaseException:
            BATCH_RECORDER.failed()
            raise
        BATCH_RECORDER.ended(began, loader, samples)
        return batch

    fetcher_class.fetch = fetch


def _loader_at_work() -> int:
    if SESSION.role == "worker":
        return SESSION.loader
    beside = LOADER_OF_THREAD.get()
    return LOADER_REGISTRY.asked if beside < 0 else beside


class OwnBatchObserver:
    """Records the batches of Headrace's own loader; see `BatchObserver`."""

    @contextmanager
    def working(self, number: int) -> Iterator[None]:
        """Record this process as worker `number` in the context."""
        _begin_own_worker(number)
        try:
            yield
        finally:
            end_worker()

    @skipped_by_warnings
    def make_batch(self, make: Callable[[], tuple[bytes, int]], dataset: Any) -> bytes:
        """Make a batch, and write its row."""
        loader = _loader_at_work()
        began = BATCH_RECORDER.began(loader)
        if began is None:
            return make()[0]
        try:
            with TRANSFORM_TIMER.timing_if_due(dataset, loader):
                content, samples = make()
        except BaseException:
            BATCH_RECORDER.failed()
            raise
        if BATCH_RECORDER.collate_ns:
            BATCH_RECORDER.collate_ns += time.monotonic_ns() - began[0]
        BATCH_RECORDER.ended(began, loader, samples)
        return content

    @skipped_by_warnings
    def make_sample(self, make: Callable[[Any, int], Any], index: Any, seed: int) -> Any:
        """Make a sample during collation: the rest of the batch's time is collating."""
        began_ns = time.monotonic_ns()
        try:
            return make(index, seed)
        finally:
            BATCH_RECORDER.collate_ns -= time.monotonic_ns() - began_ns


@guarded
def _begin_own_worker(number: int) -> None:
    loader = env.LOADER.get_int(-1)
    SESSION.become_worker(-1 if loader is None else loader, number, SESSION.rank)
    start_sampler(BATCH_RECORDER.request_phase)
