"""How many threads libraries use in ranks, and in the workers of torch's loaders.

A library that is loaded later reads a variable of the environment; one that is loaded already, as
in a forked worker, is told by its own function.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.core import env
from headrace.core.after_import import after_import

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
"""Functions of those libraries that take the number of threads, a C int."""


def prepare_threads(*, of_rank: int | None, of_worker: int | None) -> None:
    """Limit the threads of this process, and of loaders' workers, once libraries are imported.

    Args:
        of_rank: Threads of a rank; None leaves it as it is. The launcher has set the variables.
        of_worker: Likewise, of a worker.
    """
    if of_rank is not None:
        after_import("cv2", lambda cv2: cv2.setNumThreads(of_rank))
    if of_worker is not None:
        after_import(
            "torch.utils.data._utils.worker", lambda module: _hook_workers(module, of_worker)
        )


def limit_threads(count: int) -> None:
    """Have this process use so many threads in whatever is loaded, and in what comes later.

    Args:
        count: Threads, 1 or more.
    """
    env.change(env.thread_variables(count))
    for path in _libraries_loaded():
        with suppress(OSError):  # loaded under another name, or gone since
            _set_threads(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY), count)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
    # Told 1, OpenCV waits for its threads to end; of a forked process's parent it would do so for
    # ever. Told 0, it uses none.
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
    def _worker_loop(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        theirs = bound.arguments.get("init_fn")

        def init_fn(worker: int) -> None:
            if theirs is not None:
                theirs(worker)
            limit_threads(count)

        # Torch sets its own threads, and the script's function what it likes, before: ours holds.
        bound.arguments["init_fn"] = init_fn
        return original(*bound.args, **bound.kwargs)

    module._worker_loop = _worker_loop  # noqa: SLF001 - likewise


def _libraries_loaded() -> list[str]:
    """Return the loaded libraries that may have threads of their own."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # no such file system here
        return []
    paths = (line.split(maxsplit=5)[5] for line in lines if line.count(" ") >= 5 and "/" in line)
    return sorted({path for path in paths if _LIBRARY.search(path)})
