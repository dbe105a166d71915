"""Hooks where torch's DataLoader makes batches: its workers, and the rank without workers."""

from __future__ import annotations

import functools
import multiprocessing
import time
from typing import Any

from headrace.core import env
from headrace.core.after_import import after_import
from headrace.observe.probe.batches import BATCHES_MADE
from headrace.observe.probe.loaders import LOADERS_SEEN
from headrace.observe.probe.session import SESSION, guarded
from headrace.observe.probe.stacks import start_sampler, stop_sampler
from headrace.observe.probe.transforms import TIMER


def hook_workers() -> None:
    """Install the hooks; torch is imported, perhaps not yet its data package."""
    after_import("torch.utils.data._utils.worker", _hook_worker_loop)
    after_import("torch.utils.data._utils.fetch", _hook_fetchers)


def _hook_worker_loop(module: Any) -> None:
    original = module._worker_loop  # noqa: SLF001 - what a worker process runs

    @functools.wraps(original)  # spawned workers find it by the original's name
    def _worker_loop(*args: Any, **kwargs: Any) -> Any:
        _begin_worker(args, kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            _end_worker()

    module._worker_loop = _worker_loop  # noqa: SLF001 - likewise
    _hook_watchdog(module)


def _hook_watchdog(module: Any) -> None:
    """Let a worker whose rank was killed before the worker had begun notice it, and end.

    torch takes whoever is the worker's parent when its loop begins for the rank. Our own beginning
    comes before that, so without this it would leave more orphans behind than there were.
    """
    original = module.ManagerWatchdog

    class ManagerWatchdog(original):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            rank = multiprocessing.parent_process()
            if rank is not None and not _is_from_a_fork_server():
                self.manager_pid = rank.pid

    module.ManagerWatchdog = ManagerWatchdog


def _is_from_a_fork_server() -> bool:
    """Whether this process is a child of multiprocessing's fork server, not of the rank."""
    chosen = getattr(multiprocessing.current_process(), "_start_method", None)
    return (chosen or multiprocessing.get_start_method(allow_none=True)) == "forkserver"


@guarded
def _begin_worker(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    import inspect

    from torch.utils.data._utils import worker

    names = inspect.signature(worker._worker_loop).bind(*args, **kwargs)  # noqa: SLF001
    number = int(names.arguments["worker_id"])
    loader = env.LOADER.get_int(-1)
    SESSION.become_worker(-1 if loader is None else loader, number, SESSION.rank)
    _time_sending()
    start_sampler(lambda: BATCHES_MADE.phase)


@guarded
def _end_worker() -> None:
    stop_sampler()
    TIMER.flush()
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
                BATCHES_MADE.send_ns += time.monotonic_ns() - began_ns

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
        fetcher.collate_fn = BATCHES_MADE.collating(fetcher.collate_fn)

    fetcher_class.__init__ = __init__


def _hook_fetch(fetcher_class: Any) -> None:
    original = fetcher_class.fetch

    @functools.wraps(original)
    def fetch(fetcher: Any, possibly_batched_index: Any) -> Any:
        began = BATCHES_MADE.began()
        if began is None:
            return original(fetcher, possibly_batched_index)
        try:
            if TIMER.is_due():
                with TIMER.timing(fetcher.dataset, _loader_at_work()):
                    batch = original(fetcher, possibly_batched_index)
            else:
                batch = original(fetcher, possibly_batched_index)
        except BaseException:
            BATCHES_MADE.failed()
            raise
        size = len(possibly_batched_index) if fetcher.auto_collation else 1
        BATCHES_MADE.ended(began, _loader_at_work(), size)
        return batch

    fetcher_class.fetch = fetch


def _loader_at_work() -> int:
    if SESSION.role == "worker":
        return SESSION.loader
    return LOADERS_SEEN.asked
