"""Where the probe begins in a process: hooks that wait for imports, nothing else."""

from __future__ import annotations

from types import ModuleType

from headrace.core.after_import import after_import


def prepare() -> None:
    """Prepare to record, should this process turn out to train or to load data."""
    after_import("torch", _torch)
    after_import("headrace.data.loader.making", _making)


def _torch(_module: ModuleType) -> None:
    from headrace.observe.probe.rank_hooks import hook_rank
    from headrace.observe.probe.torch_worker import hook_workers

    hook_rank()
    hook_workers()


def _making(module: ModuleType) -> None:
    from headrace.observe.probe.own_worker import hook_making

    hook_making(module)
