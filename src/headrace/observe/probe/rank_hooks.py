"""Hooks in a training process: into torch, its loaders and Ray Data, for the rank recorder.

Copies to the device are calls of `.to`, `.cuda` and `.copy_` on tensors in the host's memory.
Trainers end up in these too: accelerate, Lightning and transformers' BatchEncoding call
`Tensor.to`. Libraries look these methods up on the class to compare them with the function passed
to a tensor subclass, so the class still returns the originals. Calls through the class, and
functions that create tensors on the device such as `torch.tensor(..., device=...)`, are not seen.

Ray Data's batches are made by Ray's own processes, which the probe does not observe: only the waits
for the batches of `iter_torch_batches` are recorded.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable, Iterator
from multiprocessing import util
from types import MethodType, ModuleType
from typing import Any

from headrace.core.import_hooks import after_import
from headrace.core.loader_hooks import LOADER_HOOKS
from headrace.core.source_location import script_location
from headrace.core.warning_frames import skipped_by_warnings
from headrace.observe.probe.gradient_sync import GRADIENT_SYNC, SHARDED_SYNC
from headrace.observe.probe.loaders import LOADER_REGISTRY, time_queue_reads
from headrace.observe.probe.rank_recorder import RANK_RECORDER
from headrace.observe.probe.recording_session import SESSION, guarded
from headrace.observe.probe.shared_batches import hook_shared_batches
from headrace.observe.probe.step_clock import DeviceCopyCounts

_Function = Callable[..., Any]


class CopyObserver:
    """Observer of the script's copies to the device; `on_begin` returns whether a copy counts."""

    def __init__(self) -> None:
        self.on_begin: Callable[[], bool | None] = lambda: False
        self.on_end: Callable[[DeviceCopyCounts], None] = lambda _copies: None

    def hook(self, torch: ModuleType) -> None:
        """Hook the methods of torch.Tensor."""
        methods = _CopyMethods(torch, self)
        originals = {name: getattr(torch.Tensor, name) for name in ("to", "cuda", "copy_")}
        for name, original in originals.items():
            setattr(torch.Tensor, name, _WatchedMethod(original, getattr(methods, name)(original)))
        after_import("torch._dynamo.variables.tensor", lambda module: _restore(module, originals))


class _WatchedMethod:
    """A method that is observed when called on a tensor; the class returns the original."""

    __slots__ = ("_original", "_watched")

    def __init__(self, original: Any, watched: _Function) -> None:
        self._original = original
        self._watched = watched

    def __get__(self, tensor: object, owner: type | None = None) -> Any:
        return self._original if tensor is None else MethodType(self._watched, tensor)


class _CopyMethods:
    """Makes the observed methods. Most calls copy nothing, so they are dismissed in few steps."""

    def __init__(self, torch: ModuleType, observer: CopyObserver) -> None:
        self._observer = observer
        self._tensor, self._device, self._dtype = torch.Tensor, torch.device, torch.dtype
        self._plain = {torch.Tensor, torch.nn.Parameter}
        self._as_plain = torch._C.DisableTorchFunctionSubclass  # noqa: SLF001 - as torch does

    def to(self, original: _Function) -> _Function:
        dtype, plain = self._dtype, self._plain

        @skipped_by_warnings
        def to(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
            target = args[0] if args else kwargs.get("device", kwargs.get("tensor"))
            if (
                target is None
                or type(target) is dtype
                or (type(tensor) in plain and not tensor.is_cpu)
                or not self._is_copied(tensor, target)
            ):
                return original(tensor, *args, **kwargs)
            return self._count(original, tensor, tensor, args, kwargs)

        return to

    def cuda(self, original: _Function) -> _Function:
        @skipped_by_warnings
        def cuda(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not self._is_on_host(tensor):
                return original(tensor, *args, **kwargs)
            return self._count(original, tensor, tensor, args, kwargs)

        return cuda

    def copy_(self, original: _Function) -> _Function:
        plain = self._plain

        @skipped_by_warnings
        def copy_(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
            if type(tensor) in plain and tensor.is_cpu:
                return original(tensor, *args, **kwargs)
            source = args[0] if args else kwargs.get("other")
            if self._is_on_host(tensor) or not self._is_on_host(source):
                return original(tensor, *args, **kwargs)
            return self._count(original, source, tensor, args, kwargs)

        return copy_

    def _is_on_host(self, tensor: Any) -> bool:
        if type(tensor) in self._plain:
            return bool(tensor.is_cpu)
        try:
            with self._as_plain():  # a subclass must not notice this call
                return bool(tensor.is_cpu)
        except Exception:  # noqa: BLE001 - a script may pass any object for a tensor
            return False

    def _is_pinned(self, tensor: Any) -> bool:
        try:
            with self._as_plain():
                return bool(tensor.is_pinned())
        except Exception:  # noqa: BLE001 - a subclass may not implement it
            return False

    def _is_copied(self, tensor: Any, target: Any) -> bool:
        """Return whether `tensor.to(target)` copies from the host to a device."""
        kind = type(target)
        if kind is str:
            to_device = not target.startswith("cpu")
        elif kind is self._device:
            to_device = target.type != "cpu"
        elif isinstance(target, self._tensor):
            to_device = not self._is_on_host(target)
        else:
            to_device = kind is int  # a device's number; torch rejects other objects
        return to_device and self._is_on_host(tensor)

    @skipped_by_warnings
    def _count(
        self, original: _Function, source: Any, tensor: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        if not self._observer.on_begin():
            return original(tensor, *args, **kwargs)
        copies = DeviceCopyCounts()  # a call that raises has copied nothing
        try:
            result = original(tensor, *args, **kwargs)
            copies = DeviceCopyCounts(
                1, int(not self._is_pinned(source)), int(not _is_async(args, kwargs))
            )
        finally:
            self._observer.on_end(copies)
        return result


def _is_async(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether `non_blocking` was passed: by name, or as the first bool."""
    given = next((value for value in args if type(value) is bool), None)
    return bool(kwargs.get("non_blocking", False) if given is None else given)


def _restore(module: ModuleType, originals: dict[str, Any]) -> None:
    """Let torch.compile find the originals in its own table of tensor attributes."""
    known = getattr(module, "all_tensor_attrs", None)
    if isinstance(known, dict):
        known.update(originals)


COPY_OBSERVER = CopyObserver()


_BATCH_SIZE, _PREFETCH_BATCHES = 256, 1  # Ray's defaults


class RecordedRayBatches:
    """Wrapper of the return value of `iter_torch_batches`; each iteration of it is an epoch."""

    def __init__(self, batches: Any, loader: int) -> None:
        self._batches = batches
        self._loader = loader

    def __iter__(self) -> RecordedIterator:
        return RecordedIterator(iter(self._batches), self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


class RecordedIterator:
    """Wrapper of a library's iterator over batches, whose `__next__` is hooked."""

    def __init__(self, batches: Iterator[Any], loader: int) -> None:
        self._batches = batches
        LOADER_REGISTRY.mark(self, loader)

    def __iter__(self) -> RecordedIterator:
        return self

    @skipped_by_warnings
    def __next__(self) -> Any:
        return next(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


_LOADERS_BY_LINE: dict[tuple[str, int], int] = {}
"""Numbers of Ray Data's loaders by the line that asks for batches, the same in each epoch."""


@guarded
def _ray_loader_number(kwargs: dict[str, Any]) -> int | None:
    """Return the number of the loader at the script's line; None if this is no rank."""
    if SESSION.role != "rank":
        return None
    place = script_location()
    if place not in _LOADERS_BY_LINE:
        size = kwargs.get("batch_size", _BATCH_SIZE)
        prefetched = int(kwargs.get("prefetch_batches", _PREFETCH_BATCHES))
        batch_size = -1 if size is None else int(size)
        pinned = int(bool(kwargs.get("pin_memory", False)))
        description = ("ray", "Dataset", "iterable", 0, prefetched, batch_size, pinned, 0, 1, "")
        _LOADERS_BY_LINE[place] = LOADER_REGISTRY.add(*description)
    return _LOADERS_BY_LINE[place]


def hook_ray_data(module: ModuleType) -> None:
    """Hook Ray Data; `ray.data.iterator` is imported."""
    original = module.DataIterator.iter_torch_batches

    @functools.wraps(original)
    @skipped_by_warnings
    def iter_torch_batches(*args: Any, **kwargs: Any) -> Any:
        batches = original(*args, **kwargs)
        number = _ray_loader_number(kwargs)
        return batches if number is None else RecordedRayBatches(batches, number)

    module.DataIterator.iter_torch_batches = iter_torch_batches


def hook_accelerate(module: ModuleType) -> None:
    """Hook Accelerate's loader whose rank 0 reads for all, and sends each rank its part.

    All ranks wait for that in `next()`, in which rank 0 asks the loader within for batches.
    """
    dispatcher = module.DataLoaderDispatcher
    original = dispatcher.__iter__

    @functools.wraps(original)
    @skipped_by_warnings
    def __iter__(loader: Any) -> Any:  # noqa: N807 - replaces that method
        batches = original(loader)
        number = LOADER_REGISTRY.number_of_loader(loader.base_dataloader)
        if number < 0:
            return batches
        LOADER_REGISTRY.counted_outside.add(number)
        return RecordedIterator(batches, number)

    dispatcher.__iter__ = __iter__


_EXIT_PRIORITY = 100
"""Of the finalizer at a process's end: it runs first, as later ones take time that is no step."""


def hook_rank() -> None:
    """Install the hooks; torch is imported."""
    import torch
    from torch.optim import optimizer

    RANK_RECORDER.grad_is_on = torch.is_grad_enabled
    LOADER_REGISTRY.on_iterator = RANK_RECORDER.iterating
    COPY_OBSERVER.on_begin = RANK_RECORDER.copy_began
    COPY_OBSERVER.on_end = RANK_RECORDER.copy_ended
    COPY_OBSERVER.hook(torch)
    SHARDED_SYNC.on_host_wait = RANK_RECORDER.host_waits
    SHARDED_SYNC.on_device_wait = RANK_RECORDER.device_waits
    SHARDED_SYNC.prepare()
    optimizer.register_optimizer_step_pre_hook(_eager_hook(torch, RANK_RECORDER.optimizer_began))
    optimizer.register_optimizer_step_post_hook(_eager_hook(torch, RANK_RECORDER.optimizer_ended))
    _hook_backward(torch)
    after_import("torch.utils.data.dataloader", _hook_torch_loader)
    after_import("torchdata.stateful_dataloader.stateful_dataloader", _hook_stateful_loader)
    after_import("torch.nn.parallel.distributed", GRADIENT_SYNC.hook)
    after_import(
        "torch.distributed.distributed_c10d",
        hook_shared_batches(torch, RANK_RECORDER.batch_waits),
    )
    LOADER_HOOKS.loaders = OwnLoaderObserver()
    _hook_next(RecordedIterator)
    after_import("ray.data.iterator", hook_ray_data)
    after_import("accelerate.data_loader", hook_accelerate)
    atexit.register(RANK_RECORDER.close)
    # A child that multiprocessing forks does not run atexit, and may train as a rank of its own.
    util.register_after_fork(
        RANK_RECORDER,
        lambda recorder: util.Finalize(recorder, recorder.close, exitpriority=_EXIT_PRIORITY),
    )


def _eager_hook(torch: ModuleType, hook: Callable[[Any], None]) -> Callable[..., None]:
    """Return an optimizer hook that torch.compile runs outside its graph.

    The step of each of torch's own optimizers breaks the graph anyway. Others may be part of a
    graph that must not break: their compiled steps are not seen.
    """
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)

    def call_hook_outside_graph(optimizer: Any) -> None:  # torch cannot mark a method
        hook(optimizer)

    uncompiled_hook = getattr(torch, "_disable_dynamo", lambda function: function)(
        call_hook_outside_graph
    )

    def call_hook(optimizer: Any, *_: Any) -> None:
        if not is_compiling():
            hook(optimizer)
        elif type(optimizer).__module__.startswith("torch.optim"):
            uncompiled_hook(optimizer)

    return call_hook


def _hook_backward(torch: ModuleType) -> None:
    original = torch.autograd.backward

    @functools.wraps(original)
    @skipped_by_warnings
    def backward(*args: Any, **kwargs: Any) -> Any:
        try:
            RANK_RECORDER.backward_began()  # in the block, as a signal may raise in it
            return original(*args, **kwargs)
        finally:
            RANK_RECORDER.backward_ended()

    torch.autograd.backward = backward


def _hook_torch_loader(module: ModuleType) -> None:
    LOADER_REGISTRY.hook_torch(module)
    _hook_next(module._BaseDataLoaderIter)  # noqa: SLF001 - base of all torch iterators
    time_queue_reads(module)  # last, because some versions of torch lack what it hooks


def _hook_stateful_loader(module: ModuleType) -> None:
    """Hook torchdata's loader, which constructs itself and its iterators without torch's."""
    LOADER_REGISTRY.hook_class(module.StatefulDataLoader)
    time_queue_reads(module, "_StatefulMultiProcessingDataLoaderIter")


class OwnLoaderObserver:
    """Records Headrace's own loaders; see `LoaderObserver`."""

    def __init__(self) -> None:
        self.construct, self.iterate = LOADER_REGISTRY.construct_own, LOADER_REGISTRY.iterate
        self.fetch_began = RANK_RECORDER.fetch_began
        self.fetch_ended = RANK_RECORDER.fetch_ended
        self.fetch_failed = RANK_RECORDER.fetch_failed


def _hook_next(iterator_class: Any) -> None:
    original = iterator_class.__next__

    @functools.wraps(original)
    @skipped_by_warnings
    def __next__(self: Any) -> Any:  # noqa: N807 - replaces that method
        began = RANK_RECORDER.fetch_began(self)
        if began is None:
            return original(self)
        try:
            batch = original(self)
        except StopIteration:
            RANK_RECORDER.fetch_ended(self, began, None, ended=True)
            raise
        except BaseException:
            RANK_RECORDER.fetch_failed()
            raise
        RANK_RECORDER.fetch_ended(self, began, batch, ended=False)
        return batch

    iterator_class.__next__ = __next__
    if "next" in vars(iterator_class):
        iterator_class.next = __next__
