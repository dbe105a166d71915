"""Hooks where Headrace's own loader makes batches: in its workers, or in a rank without workers."""

from __future__ import annotations

import functools
import time
from types import ModuleType
from typing import Any

from headrace.core import env
from headrace.core.import_hooks import after_import
from headrace.observe.probe.batch_recorder import BATCH_RECORDER
from headrace.observe.probe.loaders import LOADER_REGISTRY
from headrace.observe.probe.recording_session import SESSION, guarded
from headrace.observe.probe.stack_sampler import start_sampler, stop_sampler
from headrace.observe.probe.transform_timer import TRANSFORM_TIMER


def hook_batch_builder(module: ModuleType) -> None:
    """Install the hooks; `headrace.data.loader.batch_builder` is imported."""
    _hook_build(module.BatchBuilder)
    _hook_sample(module.BatchBuilder)
    after_import("headrace.data.loader.workers.worker", _hook_worker)


def _hook_worker(module: ModuleType) -> None:
    original = module.Worker.run

    @functools.wraps(original)
    def run(worker: Any) -> None:
        _begin_worker(worker)
        try:
            original(worker)
        finally:
            _end_worker()

    module.Worker.run = run


@guarded
def _begin_worker(worker: Any) -> None:
    loader = env.LOADER.get_int(-1)
    number = worker._number  # noqa: SLF001 - not part of the public interface
    SESSION.become_worker(-1 if loader is None else loader, number, SESSION.rank)
    start_sampler(BATCH_RECORDER.request_phase)


@guarded
def _end_worker() -> None:
    stop_sampler()
    TRANSFORM_TIMER.flush()
    SESSION.close()


def _hook_build(builder_class: Any) -> None:
    original = builder_class.make

    @functools.wraps(original)
    def make(builder: Any, spec: Any, arena: Any) -> bytes:
        loader = _loader_at_work()
        began = BATCH_RECORDER.began(loader)
        if began is None:
            return bytes(original(builder, spec, arena))
        try:
            if TRANSFORM_TIMER.is_due(loader):
                loader_spec = builder._loader_spec  # noqa: SLF001 - not part of the interface
                with TRANSFORM_TIMER.timing(loader_spec.dataset, loader):
                    content: bytes = original(builder, spec, arena)
            else:
                content = original(builder, spec, arena)
        except BaseException:
            BATCH_RECORDER.failed()
            raise
        if BATCH_RECORDER.collate_ns:
            BATCH_RECORDER.collate_ns += time.monotonic_ns() - began[0]
        BATCH_RECORDER.ended(began, loader, builder._samples_made)  # noqa: SLF001
        return content

    builder_class.make = make


def _hook_sample(builder_class: Any) -> None:
    original = builder_class._seeded  # noqa: SLF001 - makes one sample

    @functools.wraps(original)
    def _seeded(builder: Any, index: Any, seed: int) -> Any:
        began_ns = time.monotonic_ns()
        try:
            return original(builder, index, seed)
        finally:
            # Samples are made during collation: the rest of the batch's time is collating.
            BATCH_RECORDER.collate_ns -= time.monotonic_ns() - began_ns

    builder_class._seeded = _seeded  # noqa: SLF001


def _loader_at_work() -> int:
    return SESSION.loader if SESSION.role == "worker" else LOADER_REGISTRY.asked
