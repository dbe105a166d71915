"""Hooks where Headrace's own loader makes batches: its workers, and the rank without workers."""

from __future__ import annotations

import functools
import time
from types import ModuleType
from typing import Any

from headrace.core import env
from headrace.core.after_import import after_import
from headrace.observe.probe.batches import BATCHES_MADE
from headrace.observe.probe.loaders import LOADERS_SEEN
from headrace.observe.probe.session import SESSION, guarded
from headrace.observe.probe.stacks import start_sampler, stop_sampler
from headrace.observe.probe.transforms import TIMER


def hook_making(module: ModuleType) -> None:
    """Install the hooks; `headrace.data.loader.making` is imported."""
    _hook_make(module.BatchMaker)
    _hook_seeded(module.BatchMaker)
    after_import("headrace.data.loader.worker", _hook_worker)


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
    number = worker._number  # noqa: SLF001 - the probe looks at what is not for scripts
    SESSION.become_worker(-1 if loader is None else loader, number, SESSION.rank)
    start_sampler(BATCHES_MADE.ask_phase)


@guarded
def _end_worker() -> None:
    stop_sampler()
    TIMER.flush()
    SESSION.close()


def _hook_make(maker_class: Any) -> None:
    original = maker_class.make

    @functools.wraps(original)
    def make(maker: Any, order: Any, arena: Any) -> bytes:
        loader = _loader_at_work()
        began = BATCHES_MADE.began(loader)
        if began is None:
            return bytes(original(maker, order, arena))
        try:
            if TIMER.is_due(loader):
                recipe = maker._recipe  # noqa: SLF001 - likewise
                with TIMER.timing(recipe.dataset, loader):
                    content: bytes = original(maker, order, arena)
            else:
                content = original(maker, order, arena)
        except BaseException:
            BATCHES_MADE.failed()
            raise
        if BATCHES_MADE.collate_ns:
            BATCHES_MADE.collate_ns += time.monotonic_ns() - began[0]
        BATCHES_MADE.ended(began, loader, maker._samples_made)  # noqa: SLF001
        return content

    maker_class.make = make


def _hook_seeded(maker_class: Any) -> None:
    original = maker_class._seeded  # noqa: SLF001 - where one sample is made

    @functools.wraps(original)
    def _seeded(maker: Any, index: Any, seed: int) -> Any:
        began_ns = time.monotonic_ns()
        try:
            return original(maker, index, seed)
        finally:
            # Samples are made while they are collated: what is left of the batch is collating.
            BATCHES_MADE.collate_ns -= time.monotonic_ns() - began_ns

    maker_class._seeded = _seeded  # noqa: SLF001


def _loader_at_work() -> int:
    return SESSION.loader if SESSION.role == "worker" else LOADERS_SEEN.asked
