"""Waits for other ranks in collectives that the script calls itself.

Between backward and the optimizer's step they share gradients, as where a script averages them by
hand. Broadcasts and scatters count as data wait in a rank that has no batch of its own at that
moment: there the script's next batch is what it waits for. Gradient sync of DDP, and its buffers,
go other ways.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from headrace.core.warning_frames import skipped_by_warnings

CollectiveCallback = Callable[[bool, bool], None]
"""Called as a collective begins (True) or ends; and with whether it may bring data of a rank."""
_BRING_DATA = frozenset(
    {"broadcast", "broadcast_object_list", "scatter", "scatter_object_list", "recv"}
)
_OTHERS = (
    "all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "reduce_scatter_single", "all_gather", "all_gather_coalesced", "all_gather_into_tensor",
    "all_gather_single", "all_gather_object", "all_to_all", "all_to_all_single", "barrier",
)  # fmt: skip

_IS_INSIDE: ContextVar[bool] = ContextVar("is inside a collective", default=False)
"""Whether this thread is in a collective, which may call others."""


def hook_collectives(
    torch: ModuleType, on_collective: CollectiveCallback
) -> Callable[[ModuleType], None]:
    """Return a hook of torch's collectives, and of waits for asynchronous ones."""
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)

    def reported(collective: Callable[..., Any], *, brings_data: bool) -> Callable[..., Any]:
        @functools.wraps(collective)
        @skipped_by_warnings
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or _IS_INSIDE.get():
                return collective(*args, **kwargs)
            _IS_INSIDE.set(True)
            try:
                on_collective(True, brings_data)
                return collective(*args, **kwargs)
            finally:
                _IS_INSIDE.set(False)
                on_collective(False, brings_data)

        return call

    def hook(module: ModuleType) -> None:
        package = sys.modules.get("torch.distributed")
        for name in (*_BRING_DATA, *_OTHERS):
            original = getattr(module, name, None)
            if original is None:
                continue
            setattr(module, name, reported(original, brings_data=name in _BRING_DATA))
            if getattr(package, name, None) is original:  # imported by its name already
                setattr(package, name, getattr(module, name))
        module.Work.wait = reported(module.Work.wait, brings_data=False)

    return hook
