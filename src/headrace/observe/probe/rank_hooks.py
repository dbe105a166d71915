"""Hooks in a training process: into torch, its loaders and Ray Data, for the rank recorder."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from multiprocessing import util
from typing import Any

from headrace.core.import_hooks import after_import
from headrace.core.loader_hooks import LOADER_HOOKS
from headrace.observe.probe.device_copies import COPY_OBSERVER
from headrace.observe.probe.gradient_sync import GRADIENT_SYNC, SHARDED_SYNC
from headrace.observe.probe.graph_replays import GRAPH_REPLAYS
from headrace.observe.probe.handed_batches import HandedBatches
from headrace.observe.probe.iterator_state import state_of
from headrace.observe.probe.library_batches import (
    RecordedIterator,
    hook_accelerate,
    hook_ray_data,
)
from headrace.observe.probe.loader_workers import time_queue_reads
from headrace.observe.probe.loaders import LOADER_REGISTRY
from headrace.observe.probe.rank_recorder import RANK_RECORDER, FetchBegan
from headrace.observe.probe.shared_batches import hook_collectives
from headrace.observe.probe.startup_stacks import STARTUP_SAMPLER
from headrace.observe.probe.step_hooks import (
    hook_backward,
    hook_next,
    hook_optimizers,
    next_unrecorded,
)

_HANDED_BATCHES = HandedBatches(RANK_RECORDER)
_EXIT_PRIORITY = 100
"""Of the finalizer at a process's end: it runs first, as later ones take time that is no step."""


def hook_rank() -> None:
    """Install the hooks; torch is imported."""
    import torch
    from torch.optim import optimizer

    RANK_RECORDER.grad_is_on = torch.is_grad_enabled
    RANK_RECORDER.on_early_batch = _HANDED_BATCHES.recorded
    RANK_RECORDER.on_unrecorded_batch = _HANDED_BATCHES.taken
    _HANDED_BATCHES.hook()
    LOADER_REGISTRY.on_iterator = RANK_RECORDER.iterating
    COPY_OBSERVER.on_begin = RANK_RECORDER.copy_began
    COPY_OBSERVER.on_end = RANK_RECORDER.copy_ended
    COPY_OBSERVER.hook(torch)
    SHARDED_SYNC.on_host_wait = RANK_RECORDER.host_waits
    SHARDED_SYNC.on_device_wait = RANK_RECORDER.device_waits
    SHARDED_SYNC.prepare()
    hook_optimizers(RANK_RECORDER, torch, optimizer)
    hook_backward(RANK_RECORDER, torch)
    after_import("torch.cuda.graphs", GRAPH_REPLAYS.hook_cuda(RANK_RECORDER))
    after_import("torch.utils.data.dataloader", _hook_torch_loader)
    after_import("torchdata.stateful_dataloader.stateful_dataloader", _hook_stateful_loader)
    after_import("torch.nn.parallel.distributed", GRADIENT_SYNC.hook)
    after_import(
        "torch.distributed.distributed_c10d",
        hook_collectives(torch, RANK_RECORDER.collective),
    )
    LOADER_HOOKS.loaders = OwnLoaderObserver()
    hook_next(RANK_RECORDER, RecordedIterator)
    after_import("ray.data.iterator", hook_ray_data)
    after_import("accelerate.data_loader", hook_accelerate)
    atexit.register(RANK_RECORDER.close)
    atexit.register(STARTUP_SAMPLER.end)
    STARTUP_SAMPLER.resume()
    # A child that multiprocessing forks does not run atexit, and may train as a rank of its own.
    util.register_after_fork(
        RANK_RECORDER,
        lambda recorder: util.Finalize(recorder, recorder.close, exitpriority=_EXIT_PRIORITY),
    )


def _hook_torch_loader(module: Any) -> None:
    LOADER_REGISTRY.hook_torch(module)
    hook_next(RANK_RECORDER, module._BaseDataLoaderIter)  # noqa: SLF001 - base of all torch iterators
    time_queue_reads(module)  # last, because some versions of torch lack what it hooks


def _hook_stateful_loader(module: Any) -> None:
    """Hook torchdata's loader, which constructs itself and its iterators without torch's."""
    LOADER_REGISTRY.hook_class(module.StatefulDataLoader)
    time_queue_reads(module, "_StatefulMultiProcessingDataLoaderIter")


class OwnLoaderObserver:
    """Records Headrace's own loaders; see `LoaderObserver`."""

    def __init__(self) -> None:
        self.construct, self.iterate = LOADER_REGISTRY.construct_own, LOADER_REGISTRY.iterate
        self.fetch_ended = RANK_RECORDER.fetch_ended
        self.fetch_raised = RANK_RECORDER.fetch_raised

    def fetch_began(self, iterator: Any) -> FetchBegan | None:
        """Record a request for a batch; return what `fetch_ended` needs, None if it is nested."""
        state_of(iterator)
        return RANK_RECORDER.fetch_began(iterator)

    def next_unrecorded(self, iterator: Any, make: Callable[[], Any]) -> Any:
        """Return the next batch, for which `fetch_began` returned None, as of another thread."""
        return next_unrecorded(RANK_RECORDER, iterator, lambda _: make())
