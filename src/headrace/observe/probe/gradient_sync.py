"""Gradient sync of DistributedDataParallel and FSDP that is not hidden behind backward.

DDP times its own communication, but only in one iteration of so many, and keeps the old numbers in
between. So the probe sets that rate, and reads only new measurements. DDP reports a measurement as
the next iteration begins, so it is added to the step after the one that it was made in.

FSDP gathers parameters, and reduces and scatters gradients. Where parameters are on the host
(gloo), the rank waits in each collective, so the time of the call is the wait. Where they are on a
device the calls return at once, and the device waits: from the event of the collective to the copy
of its result. Such waits are reported to the device's clock alone.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from headrace.core.import_hooks import after_import
from headrace.core.warning_frames import skipped_by_warnings
from headrace.observe.probe.recording_session import guarded

# Iterations to one that DDP times; on CUDA reading its clocks may wait for the device.
_TIMED_ONE_IN = 20


class GradientSync:
    """The DDP models of this rank, if there are `any`, and their exposed gradient sync."""

    def __init__(self) -> None:
        self.any = False
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._read: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def hook(self, module: ModuleType) -> None:
        """Hook the construction of DistributedDataParallel."""
        original = module.DistributedDataParallel.__init__

        @functools.wraps(original)
        @skipped_by_warnings
        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(model, *args, **kwargs)
            self._watch(model)

        module.DistributedDataParallel.__init__ = __init__

    @guarded
    def exposed_ns(self) -> int | None:
        """Return the exposed sync of the backward before the one that just ended, if measured."""
        measured = [sync_ns for model in self._models if (sync_ns := self._of(model)) is not None]
        return sum(measured) if measured else None

    @guarded
    def _watch(self, model: Any) -> None:
        model._set_ddp_runtime_logging_sample_rate(_TIMED_ONE_IN)  # noqa: SLF001 - no public way
        self._models.add(model)
        self.any = True

    def _of(self, model: Any) -> int | None:
        data = model._get_ddp_logging_data()  # noqa: SLF001 - no public way
        iteration = int(data.get("iteration", 0))
        if self._read.get(model) == iteration or not iteration:
            return None
        self._read[model] = iteration
        communication_ns = int(data.get("backward_comm_time", 0))
        overlap_ns = int(data.get("backward_compute_comm_overlap_time", 0))
        return max(0, communication_ns - overlap_ns)


GRADIENT_SYNC = GradientSync()

_FSDP = "torch.distributed.fsdp"
_CALLERS = (
    f"{_FSDP}._fully_shard._fsdp_collectives",
    f"{_FSDP}._runtime_utils",
    f"{_FSDP}._flat_param",
)
_COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
)

WaitCallback = Callable[[bool], None]


class ShardedSync:
    """The waits for other ranks in FSDP, each reported as it begins (True) and ends (False).

    `on_device_wait` is called as the device's wait is put into its queue.
    """

    def __init__(self) -> None:
        self.on_host_wait: WaitCallback = lambda _begins: None
        self.on_device_wait: WaitCallback = lambda _begins: None

    def prepare(self) -> None:
        """Hook FSDP, once it is imported."""
        for name in _CALLERS:
            after_import(name, self._hook_caller)
        after_import(f"{_FSDP}._fully_shard._fsdp_param_group", self._hook_group)

    def _hook_caller(self, module: Any) -> None:
        """Time FSDP's own calls of collectives, not the script's calls of the same functions."""
        module.dist = _TimedModule(module.dist, self._timed)

    def _hook_group(self, module: Any) -> None:
        group = module.FSDPParamGroup
        for name in ("wait_for_unshard", "finalize_backward"):
            setattr(group, name, _reported(getattr(group, name), self.on_device_wait))

    def _timed(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        timed = _reported(collective, self.on_host_wait)

        @functools.wraps(collective)
        @skipped_by_warnings
        def call(*args: Any, **kwargs: Any) -> Any:
            return (timed if _is_on_host(args, kwargs) else collective)(*args, **kwargs)

        return call


def _reported(wait: Callable[..., Any], report: WaitCallback) -> Callable[..., Any]:
    @functools.wraps(wait)
    @skipped_by_warnings
    def call(*args: Any, **kwargs: Any) -> Any:
        report(True)
        try:
            return wait(*args, **kwargs)
        finally:
            report(False)

    return call


class _TimedModule(ModuleType):
    """A module as one importer sees it, with some of its functions timed."""

    def __init__(self, module: ModuleType, timed: Callable[..., Callable[..., Any]]) -> None:
        super().__init__(module.__name__, module.__doc__)
        self.__wrapped__ = module
        for name in _COLLECTIVES:
            if hasattr(module, name):
                setattr(self, name, timed(getattr(module, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)


def _is_on_host(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    for value in (*args, *kwargs.values()):
        first = value[0] if isinstance(value, list) and value else value
        is_cpu = getattr(first, "is_cpu", None)
        if is_cpu is not None:
            return bool(is_cpu)
    return False


SHARDED_SYNC = ShardedSync()
