"""Other arguments and threads than the script gives: a remedy, tried without editing it."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.core import env
from headrace.core.after_import import after_import
from headrace.core.overrides import (
    APPLIED,
    RANK_THREADS,
    WORKER_THREADS,
    Override,
    parse_overrides,
    threads_in,
)
from headrace.core.places import place_in_script
from headrace.enter.threads import prepare_threads

_NEEDS_WORKERS = {"prefetch_factor": None, "persistent_workers": False}
"""Arguments that torch refuses without workers, and what they are then."""


def prepare_overrides() -> None:
    """Apply HEADRACE_APPLY to every loader that this process constructs, and to its threads."""
    overrides = parse_overrides(env.APPLY.get() or "")
    of_loaders = tuple(each for each in overrides if each.of_loaders)
    if of_loaders:
        for module in ("torch.utils.data.dataloader", "headrace.data.loader.loader"):
            after_import(module, lambda loaders: _hook(loaders, of_loaders))
    prepare_threads(
        of_rank=threads_in(overrides, RANK_THREADS),
        of_worker=threads_in(overrides, WORKER_THREADS),
    )


def _hook(module: ModuleType, overrides: tuple[Override, ...]) -> None:
    original = module.DataLoader.__init__
    signature = inspect.signature(original)
    usual = signature.parameters["num_workers"].default

    @functools.wraps(original)
    def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        bound = signature.bind(loader, *args, **kwargs)
        applied = [
            each
            for each in overrides
            if _concerns(each) and _may_have(each, bound.arguments["dataset"])
        ]
        if applied:
            wanted: dict[str, Any] = {each.name: each.value for each in applied}
            given = dict(bound.arguments)
            bound.arguments.update(_consistent(wanted, given, usual))
            args, kwargs = bound.args[1:], bound.kwargs
        original(loader, *args, **kwargs)
        _mark(applied)

    module.DataLoader.__init__ = __init__


def _consistent(wanted: dict[str, Any], given: dict[str, Any], usual: object) -> dict[str, Any]:
    """Return the arguments to change: without workers, none that only make sense with some.

    Args:
        wanted: What is applied.
        given: What the script gives.
        usual: The workers of a loader that is given no number of them.
    """
    if "prefetch_factor" in wanted and "prefetch_batches" in given:  # Headrace's loader has both
        wanted = {**wanted, "prefetch_batches": None}
    workers = wanted.get("num_workers", given.get("num_workers", usual))
    if workers:
        return wanted
    needless = {name: none for name, none in _NEEDS_WORKERS.items() if name in {*wanted, *given}}
    return {**wanted, **needless}


def _mark(applied: Sequence[Override]) -> None:
    """Let the launcher know what was applied: it tells of what was not."""
    run = env.RUN_DIR.get()
    with suppress(OSError):  # a disk that is full, say: the loader is what matters
        for each in applied if run else ():
            folder = Path(run or "", APPLIED)
            folder.mkdir(exist_ok=True)
            (folder / each.mark).touch()


def _concerns(override: Override) -> bool:
    """Whether the loader that is being constructed is meant: by the line that constructs it."""
    file, line = place_in_script()
    return not override.place or f"/{file}:{line}".endswith(f"/{override.place}")


def _may_have(override: Override, dataset: Any) -> bool:
    """Whether an override keeps what a loader gives: workers each iterate all of a stream."""
    from torch.utils.data import IterableDataset

    from headrace.data.loader.ray_dataset import is_rays

    if override.name != "num_workers":
        return True
    if is_rays(dataset):
        why = "Ray's own processes make its batches"
    elif isinstance(dataset, IterableDataset):
        why = "each worker would iterate over all of it, unless it shares itself out"
    else:
        return True
    sys.stderr.write(f"headrace: {override} is not applied to {type(dataset).__name__}: {why}\n")
    return False
