"""Hooks where loaders make batches, in their workers or in a rank: torch's and Headrace's own."""

from __future__ import annotations

import functools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.core import env
from headrace.core.import_hooks import after_import
from headrace.observe.probe import install_hooks
from headrace.observe.probe.batch_recorder import BATCH_RECORDER
from headrace.observe.probe.loaders import LOADER_REGISTRY, STARTING_LOADER, samples_in
from headrace.observe.probe.recording_session import SESSION, guarded
from headrace.observe.probe.stack_sampler import start_sampler, stop_sampler
from headrace.observe.probe.transform_timer import TRANSFORM_TIMER


def hook_workers() -> None:
    """Install the hooks; torch is imported, its data package perhaps not yet."""
    after_import("torch.utils.data._utils.worker", _hook_worker_loop)
    after_import("torch.utils.data._utils.fetch", _hook_fetchers)


def _hook_worker_loop(module: Any) -> None:
    module._worker_loop = _WorkerLoop(module._worker_loop)  # noqa: SLF001 - runs in workers
    _hook_watchdog(module)


class _WorkerLoop:
    """torch's worker loop, recorded.

    A forked worker knows its loader from its parent's context variable. A worker that is spawned,
    or forked by a fork server, gets the pickled loop, and the loader's number with it.
    """

    def __init__(self, original: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self._original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _begin_worker(self._original, args, kwargs)
        try:
            return self._original(*args, **kwargs)
        finally:
            end_worker()

    def __reduce__(self) -> tuple[Callable[[int], Any], tuple[int]]:
        return _worker_loop_of, (STARTING_LOADER.get(),)


def _worker_loop_of(loader: int) -> Any:
    """Return the loop for a worker of that loader, in the worker's process."""
    from torch.utils.data._utils import worker

    if not isinstance(worker._worker_loop, _WorkerLoop):  # noqa: SLF001 - no public way
        install_hooks()  # not installed at start, as the script changed PYTHONPATH
    STARTING_LOADER.set(loader)
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
    return (chosen or multiprocessing.get_start_method(allow_none=True)) == "forkserver"


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
        def dumps(cls, obj: Any, protocol: Any = None) -> Any:
            """Pickle as the original does."""
            began_ns = time.monotonic_ns()
            try:
                return pickler.dumps(obj, protocol)
            finally:
                BATCH_RECORDER.send_ns += time.monotonic_ns() - began_ns

    queues._ForkingPickler = TimedPickler  # type: ignore[attr-defined]  # noqa: SLF001


def _hook_fetchers(module: Any) -> None:
    _hook_construction(module._BaseDatasetFetcher)  # noqa: SLF001
    _hook_fetch(module._MapDatasetFetcher)  # noqa: SLF001
    _hook_fetch(module._IterableDatasetFetcher)  # noqa: SLF001


def _hook_construction(fetcher_class: Any) -> None:
    original = fetcher_class.__init__

    @functools.wraps(original)
    def __init__(fetcher: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(fetcher, *args, **kwargs)
        fetcher.collate_fn = BATCH_RECORDER.collating(fetcher.collate_fn)

    fetcher_class.__init__ = __init__


def _hook_fetch(fetcher_class: Any) -> None:
    original = fetcher_class.fetch

    @functools.wraps(original)
    def fetch(fetcher: Any, possibly_batched_index: Any) -> Any:
        loader = _loader_at_work()
        began = BATCH_RECORDER.began(loader)
        if began is None:
            return original(fetcher, possibly_batched_index)
        try:
            if TRANSFORM_TIMER.is_due(loader):
                with TRANSFORM_TIMER.timing(fetcher.dataset, loader):
                    batch = original(fetcher, possibly_batched_index)
            else:
                batch = original(fetcher, possibly_batched_index)
            samples = _batch_size(fetcher, possibly_batched_index, batch)
        except BaseException:
            BATCH_RECORDER.failed()
            raise
        BATCH_RECORDER.ended(began, loader, samples)
        return batch

    fetcher_class.fetch = fetch


def _batch_size(fetcher: Any, possibly_batched_index: Any, batch: Any) -> int:
    """Return the samples of a batch; -1 if unknown, such as for a dataset that yields batches."""
    try:
        return len(possibly_batched_index) if fetcher.auto_collation else samples_in(batch)
    except TypeError:  # a batch sampler may yield an iterable without a length
        return samples_in(batch)


def _loader_at_work() -> int:
    if SESSION.role == "worker":
        return SESSION.loader
    return LOADER_REGISTRY.asked


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

    def make_batch(self, make: Callable[[], tuple[bytes, int]], dataset: Any) -> bytes:
        """Make a batch, and write its row."""
        loader = SESSION.loader if SESSION.role == "worker" else LOADER_REGISTRY.asked
        began = BATCH_RECORDER.began(loader)
        if began is None:
            return make()[0]
        try:
            if TRANSFORM_TIMER.is_due(loader):
                with TRANSFORM_TIMER.timing(dataset, loader):
                    content, samples = make()
            else:
                content, samples = make()
        except BaseException:
            BATCH_RECORDER.failed()
            raise
        if BATCH_RECORDER.collate_ns:
            BATCH_RECORDER.collate_ns += time.monotonic_ns() - began[0]
        BATCH_RECORDER.ended(began, loader, samples)
        return content

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
