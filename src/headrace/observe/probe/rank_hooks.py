"""Hooks in a training process: where torch, its loaders and others tell the recorder."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable
from multiprocessing import util
from types import ModuleType
from typing import Any

from headrace.core.after_import import after_import
from headrace.observe.probe.copies import COPIES_SEEN
from headrace.observe.probe.loaders import LOADERS_SEEN
from headrace.observe.probe.rank import RECORDER, RankRecorder
from headrace.observe.probe.ray_data import RayIterator, hook_ray
from headrace.observe.probe.receipts import hook_torch
from headrace.observe.probe.sharded_sync import SHARDED
from headrace.observe.probe.sync import SYNC

_FIRST = 100
"""At a process's end: what others do then takes its time, and is no step."""


def hook_rank() -> None:
    """Install the hooks; torch is imported."""
    import torch
    from torch.optim import optimizer

    RECORDER.grad_is_on = torch.is_grad_enabled
    LOADERS_SEEN.on_iterator = RECORDER.iterating
    COPIES_SEEN.on_begin, COPIES_SEEN.on_end = RECORDER.copy_began, RECORDER.copy_ended
    COPIES_SEEN.hook(torch)
    SHARDED.on_host_wait, SHARDED.on_device_wait = RECORDER.host_waits, RECORDER.device_waits
    SHARDED.prepare()
    optimizer.register_optimizer_step_pre_hook(_outside_graphs(torch, RECORDER.optimizer_began))
    optimizer.register_optimizer_step_post_hook(_outside_graphs(torch, RECORDER.optimizer_ended))
    _hook_backward(torch)
    after_import("torch.utils.data.dataloader", _hook_torch_loader)
    after_import("torch.nn.parallel.distributed", SYNC.hook)
    after_import("headrace.data.loader.loader", _hook_own_loader)
    after_import("ray.data.iterator", _hook_ray)
    atexit.register(RECORDER.close)
    # A child that multiprocessing forks ends without that: it may train as a rank of its own.
    util.register_after_fork(RECORDER, _close_forked)


def _close_forked(recorder: RankRecorder) -> None:
    util.Finalize(recorder, recorder.close, exitpriority=_FIRST)


def _outside_graphs(torch: ModuleType, hook: Callable[[Any], None]) -> Callable[..., None]:
    """Return a hook of optimizers that torch.compile leaves its graph for, and does not look into.

    The step of each of torch's own optimizers ends the graph by itself. Others' may be part of one
    that must not end: these steps are not seen.
    """
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)

    def unseen(optimizer: Any) -> None:  # torch marks it, as it could not mark a method
        hook(optimizer)

    left_alone = getattr(torch, "_disable_dynamo", lambda function: function)(unseen)

    def told(optimizer: Any, *_: Any) -> None:
        if not is_compiling():
            hook(optimizer)
        elif type(optimizer).__module__.startswith("torch.optim"):
            left_alone(optimizer)

    return told


def _hook_backward(torch: ModuleType) -> None:
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        try:
            RECORDER.backward_began()  # here: what a signal raises in it must not leave it begun
            return original(*args, **kwargs)
        finally:
            RECORDER.backward_ended()

    torch.autograd.backward = backward


def _hook_torch_loader(module: ModuleType) -> None:
    LOADERS_SEEN.hook_torch(module)
    _hook_next(module._BaseDataLoaderIter)  # noqa: SLF001 - where every torch loader hands over
    hook_torch(module)  # last: a torch of other makings may lack what it hooks


def _hook_own_loader(module: ModuleType) -> None:
    LOADERS_SEEN.hook_own(module)
    _hook_next(module.BatchStream)


def _hook_ray(module: ModuleType) -> None:
    hook_ray(module)
    _hook_next(RayIterator)


def _hook_next(iterator_class: Any) -> None:
    original = iterator_class.__next__

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807 - it takes that method's place
        began = RECORDER.fetch_began(self)
        if began is None:
            return original(self)
        try:
            batch = original(self)
        except StopIteration:
            RECORDER.fetch_ended(self, began, None, ended=True)
            raise
        except BaseException:
            RECORDER.fetch_failed()
            raise
        RECORDER.fetch_ended(self, began, batch, ended=False)
        return batch

    iterator_class.__next__ = __next__
    if "next" in vars(iterator_class):
        iterator_class.next = __next__
