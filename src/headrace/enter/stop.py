"""Ends a script after so many optimizer steps: for a look at how fast it is."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from headrace.core import env
from headrace.core.after_import import after_import


class Countdown:
    """Counts the steps of the optimizer that stepped first.

    Args:
        steps: How many it may take.
    """

    def __init__(self, steps: int) -> None:
        self._left = steps
        self._optimizer: int | None = None

    def __call__(self, optimizer: Any, *_: Any) -> None:
        """Count a step; raises SystemExit after the last one, so that the script cleans up."""
        self._optimizer = self._optimizer or id(optimizer)
        if id(optimizer) != self._optimizer:
            return
        self._left -= 1
        if self._left <= 0:
            raise SystemExit(0)


def prepare_stop() -> None:
    """End this process's script after HEADRACE_STOP_AFTER steps, once torch is imported."""
    steps = env.STOP_AFTER.get_int()
    if steps is not None:
        after_import("torch.optim.optimizer", lambda module: _hook(module, steps))


def _hook(module: ModuleType, steps: int) -> None:
    module.register_optimizer_step_post_hook(Countdown(steps))
