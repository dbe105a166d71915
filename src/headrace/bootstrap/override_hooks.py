"""The hooks that apply overrides: other loader arguments and thread counts than the script's.

A library that is loaded later reads a variable of the environment; one that is loaded already, as
in a forked worker, is set by its own function.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.core import env
from headrace.core.import_hooks import after_import
from headrace.core.loader_hooks import LOADER_HOOKS
from headrace.core.overrides import (
    APPLIED,
    RANK_THREADS,
    WORKER_THREADS,
    Override,
    parse_overrides,
    thread_count,
)
from headrace.core.source_location import call_places
from headrace.core.warning_frames import skipped_by_warnings

_MAPS = Path("/proc/self/maps")
_LIBRARY = re.compile(r"/(lib)?[\w.-]*(openblas|mkl_rt|blis|gomp|iomp5|omp)[\w.-]*\.so[\w.]*$")
_SETTERS = (
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "scipy_openblas_set_num_threads64_",
    "MKL_Set_Num_Threads",
    "bli_thread_set_num_threads",
    "omp_set_num_threads",
)
"""Functions of those libraries that set the number of threads, a C int."""


def prepare_threads(*, of_rank: int | None, of_worker: int | None) -> None:
    """Limit the threads of this process, and of loaders' workers, once libraries are imported.

    None leaves them unchanged. For a rank the launcher has set the variables.
    """
    if of_rank is not None:
        after_import("cv2", lambda cv2: cv2.setNumThreads(of_rank))
    if of_worker is not None:
        for module in ("torch.utils.data._utils.worker", "torchdata.stateful_dataloader.worker"):
            after_import(module, lambda module: _hook_workers(module, of_worker))


def limit_threads(count: int) -> None:
    """Limit the threads of libraries, loaded or loaded later, to `count`, 1 or more."""
    env.change(env.thread_variables(count))
    for path in _libraries_loaded():
        with suppress(OSError):  # loaded under another name, or gone since
            _set_threads(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY), count)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
    # setNumThreads(1) waits for OpenCV's threads to end: in a forked process, which does not have
    # them, forever. With 0 OpenCV uses none.
    after_import("cv2", lambda cv2: cv2.setNumThreads(0 if count == 1 else count))


def _set_threads(library: ctypes.CDLL, count: int) -> None:
    for name in _SETTERS:
        setter = getattr(library, name, None)
        if setter is not None:
            setter(ctypes.c_int(count))


def _hook_workers(module: Any, count: int) -> None:
    original: Any = module._worker_loop  # noqa: SLF001 - what a worker process runs
    signature = inspect.signature(original)

    @functools.wraps(original)  # spawned workers find it by the original's name
    @skipped_by_warnings
    def _worker_loop(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        user_init_fn = bound.arguments.get("init_fn")

        def init_fn(worker: int) -> None:
            if user_init_fn is not None:
                user_init_fn(worker)
            limit_threads(count)

        # This comes last: torch, and the script's own function, may set other numbers before.
        bound.arguments["init_fn"] = init_fn
        return original(*bound.args, **bound.kwargs)

    module._worker_loop = _worker_loop  # noqa: SLF001 - as above


def _libraries_loaded() -> list[str]:
    """Return the paths of loaded libraries that may have threads of their own."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # no /proc
        return []
    paths = (line.split(maxsplit=5)[5] for line in lines if line.count(" ") >= 5 and "/" in line)
    return sorted({path for path in paths if _LIBRARY.search(path)})


_LOADER_CLASSES = (
    ("torch.utils.data.dataloader", "DataLoader"),
    ("torchdata.stateful_dataloader.stateful_dataloader", "StatefulDataLoader"),
)
"""Modules and classes of loaders that construct themselves: torchdata's does not call torch's."""
_NEEDS_WORKERS = {
    "prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None,
    "timeout": 0,
}  # fmt: skip
"""Arguments that torch rejects without workers, and their values then."""


def prepare_overrides() -> None:
    """Apply HEADRACE_APPLY to every loader that this process constructs, and to its threads."""
    overrides = parse_overrides(env.APPLY.get() or "")
    is_loader_argument = tuple(each for each in overrides if each.is_loader_argument)
    if is_loader_argument:
        LOADER_HOOKS.override = functools.partial(_construct, is_loader_argument)
        for module, name in _LOADER_CLASSES:
            after_import(module, functools.partial(_hook_loader, name, is_loader_argument))
    prepare_threads(
        of_rank=thread_count(overrides, RANK_THREADS),
        of_worker=thread_count(overrides, WORKER_THREADS),
    )


def _hook_loader(name: str, overrides: tuple[Override, ...], module: ModuleType) -> None:
    loader_class: Any = getattr(module, name)
    original = loader_class.__init__

    @functools.wraps(original)
    @skipped_by_warnings
    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: N807
        _construct(overrides, original, *args, **kwargs)

    loader_class.__init__ = __init__


@skipped_by_warnings
def _construct(
    overrides: Sequence[Override], construct: Callable[..., None], *args: Any, **kwargs: Any
) -> None:
    """Call a loader's constructor, with the loader and the script's arguments, overridden."""
    signature = inspect.signature(construct)
    bound = signature.bind(*args, **kwargs)
    applied = [
        each
        for each in overrides
        if _concerns(each, args[0] if args else None)
        and _is_applicable(each, bound.arguments["dataset"])
    ]
    if applied:
        wanted: dict[str, Any] = {each.name: each.value for each in applied}
        default = signature.parameters["num_workers"].default
        changed = _consistent(wanted, dict(bound.arguments), default)
        bound.arguments.update(changed)
        args, kwargs = bound.args, bound.kwargs
        if "num_workers" not in wanted:  # else what needs workers has gone with them, as it says
            applied = [each for each in applied if changed[each.name] == each.value]
    construct(*args, **kwargs)
    _record_applied(applied)


def _consistent(wanted: dict[str, Any], given: dict[str, Any], default: object) -> dict[str, Any]:
    """Return the arguments to change; without workers, reset those that need workers.

    `default` is the loader's number of workers where none is given. What the script itself gives a
    loader that it gives no workers stays as it is.
    """
    if "prefetch_factor" in wanted and "prefetch_batches" in given:  # Headrace's loader has both
        wanted = {**wanted, "prefetch_batches": None}
    workers = wanted.get("num_workers", given.get("num_workers", default))
    if workers:
        return wanted
    names = {*wanted, *given} if "num_workers" in wanted else {*wanted}
    unneeded = {name: none for name, none in _NEEDS_WORKERS.items() if name in names}
    return {**wanted, **unneeded}


def _record_applied(applied: Sequence[Override]) -> None:
    """Record which overrides were applied: the launcher reports the others."""
    run = env.RUN_DIR.get()
    with suppress(OSError):  # on a full disk, for example
        for each in applied if run else ():
            folder = Path(run or "", APPLIED)
            folder.mkdir(exist_ok=True)
            (folder / each.mark).touch()


def _concerns(override: Override, loader: object) -> bool:
    """Whether an override is for the loader that is being constructed, by its source line.

    Where a library constructs it, that is the library's line, or the script's that led there; of a
    subclass, the line that makes the object, or that of its constructor.
    """
    if not override.place:
        return True
    places = (*call_places(loader), *call_places())
    wanted = f"/{override.place}"
    return any(f"/{each.file}:{each.line}".endswith(wanted) for each in places)


def _is_applicable(override: Override, dataset: Any) -> bool:
    """Whether an override keeps the loader's samples: each worker iterates all of a stream."""
    from torch.utils.data import IterableDataset

    from headrace.data.loader.executors.ray_data import is_ray_dataset

    if override.name != "num_workers":
        return True
    if is_ray_dataset(dataset):
        why = "Ray's own processes make its batches"
    elif isinstance(dataset, IterableDataset):
        why = "each worker would iterate over all of it, unless it shares itself out"
    else:
        return True
    sys.stderr.write(f"headrace: {override} is not applied to {type(dataset).__name__}: {why}\n")
    return False
