"""The probe: import hooks that record a job in its ranks, its workers and one process a host.

This file holds the entry point alone and imports the rest only once torch or Headrace's loader is
imported, because every process of a job reads it at start.
"""

from __future__ import annotations

from types import ModuleType

from headrace.core.import_hooks import after_import


def install_hooks() -> None:
    """Install import hooks that start recording once this process imports torch or a loader.

    The hook of Headrace's own loader only registers an observer, which such a process alone needs.
    """
    after_import("torch", _on_torch)
    after_import("headrace.data.loader.batch_builder", _on_batch_builder)


def _on_torch(_module: ModuleType) -> None:
    from headrace.observe.probe.batch_recorder import hook_workers
    from headrace.observe.probe.rank_hooks import hook_rank

    hook_rank()
    hook_workers()


def _on_batch_builder(_module: ModuleType) -> None:
    from headrace.core.loader_hooks import LOADER_HOOKS
    from headrace.observe.probe.batch_recorder import OwnBatchObserver

    LOADER_HOOKS.batches = OwnBatchObserver()
