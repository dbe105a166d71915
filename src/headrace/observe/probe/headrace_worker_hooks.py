"""The observer of batches that Headrace's own loader makes: in its workers, or in a rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.core import env
from headrace.observe.probe.batch_recorder import BATCH_RECORDER
from headrace.observe.probe.loaders import LOADER_REGISTRY
from headrace.observe.probe.recording_session import SESSION, guarded
from headrace.observe.probe.stack_sampler import start_sampler
from headrace.observe.probe.torch_worker_hooks import end_worker
from headrace.observe.probe.transform_timer import TRANSFORM_TIMER


class OwnBatchObserver:
    """Records the batches of Headrace's own loader; see `BatchObserver`."""

    @contextmanager
    def working(self, number: int) -> Iterator[None]:
        """Record this process as worker `number` in the context."""
        _begin_worker(number)
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
def _begin_worker(number: int) -> None:
    loader = env.LOADER.get_int(-1)
    SESSION.become_worker(-1 if loader is None else loader, number, SESSION.rank)
    start_sampler(BATCH_RECORDER.request_phase)
