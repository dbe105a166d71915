"""Waits for batches that another rank reads and sends: broadcasts and scatters of the script.

They count as data wait in a rank that has no batch of its own at that moment: there the script's
next batch is what it waits for. Gradient sync and DDP's buffers go other ways.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from headrace.core.warning_frames import skipped_by_warnings

WaitCallback = Callable[[bool], None]
_COLLECTIVES = ("broadcast", "broadcast_object_list", "scatter", "scatter_object_list", "recv")


def hook_shared_batches(torch: ModuleType, on_wait: WaitCallback) -> Callable[[ModuleType], None]:
    """Return a hook of torch's collectives, each reported as it begins (True) and ends (False)."""
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)

    def reported(collective: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(collective)
        @skipped_by_warnings
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return collective(*args, **kwargs)
            on_wait(True)
            try:
                return collective(*args, **kwargs)
            finally:
                on_wait(False)

        return call

    def hook(module: ModuleType) -> None:
        package = sys.modules.get("torch.distributed")
        for name in _COLLECTIVES:
            original = getattr(module, name, None)
            if original is None:
                continue
            setattr(module, name, reported(original))
            if getattr(package, name, None) is original:  # imported by its name already
                setattr(package, name, getattr(module, name))

    return hook
