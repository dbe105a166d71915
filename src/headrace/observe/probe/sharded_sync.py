"""What FSDP's collectives cost: gathering parameters, and reducing and scattering gradients.

Where parameters are on the host (gloo), the rank waits in each collective, so its time is that of
the call. Where they are on a device the calls return at once, and the device waits: from the event
of the collective to the copy of what it brought. That goes to the device's clock alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from headrace.core.after_import import after_import

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
_DEVICE_WAITS = ("wait_for_unshard", "finalize_backward")

OnWait = Callable[[bool], None]


class ShardedSync:
    """The waits of this rank for the others, in FSDP.

    Attributes:
        on_host_wait: Called with True as the host begins to wait, and with False when it has.
        on_device_wait: Likewise for the device: as what it waits for is put into its queue.
    """

    def __init__(self) -> None:
        self.on_host_wait: OnWait = lambda _begins: None
        self.on_device_wait: OnWait = lambda _begins: None

    def prepare(self) -> None:
        """Watch FSDP, once it is imported."""
        for name in _CALLERS:
            after_import(name, self._hook_caller)
        after_import(f"{_FSDP}._fully_shard._fsdp_param_group", self._hook_group)

    def _hook_caller(self, module: Any) -> None:
        """Have FSDP's own calls timed, and not the script's calls of the same functions."""
        module.dist = _Watched(module.dist, self._timed)

    def _hook_group(self, module: Any) -> None:
        group = module.FSDPParamGroup
        for name in _DEVICE_WAITS:
            setattr(group, name, self._bracketed(getattr(group, name)))

    def _timed(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(collective)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not _is_on_host(args, kwargs):
                return collective(*args, **kwargs)
            self.on_host_wait(True)
            try:
                return collective(*args, **kwargs)
            finally:
                self.on_host_wait(False)

        return call

    def _bracketed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.on_device_wait(True)
            try:
                return method(*args, **kwargs)
            finally:
                self.on_device_wait(False)

        return call


class _Watched(ModuleType):
    """A module as one importer of it sees it: some of its functions are timed."""

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


SHARDED = ShardedSync()
