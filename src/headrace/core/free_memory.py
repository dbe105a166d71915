"""Memory that a process no longer uses: given back to the kernel, not held by threads."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from headrace.core import env

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3  # M_ARENA_MAX and M_MMAP_THRESHOLD of malloc.h
_ARENAS, _LARGE_BYTES = 2, 64 << 10


def release_free_memory(*, collects: bool = False) -> None:
    """Give free memory back, which glibc else holds for later; nothing with another libc.

    If it `collects`, objects that refer to each other are freed before, which may take 50 ms.
    """
    if collects:
        gc.collect()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


def hold_little_memory() -> None:
    """Have glibc give large pieces back as they are freed, and threads share what it holds.

    Arrow, which this imports with its functions, uses glibc, too. Its own allocator holds on to
    tens of MB of a long run's rows. It is chosen once, as Arrow is first imported:
    `set_memory_pool` comes too late for what Arrow allocates by itself.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_ARENA_MAX, _ARENAS)
        libc.mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
    chosen = env.ARROW_DEFAULT_MEMORY_POOL.get()
    env.change({env.ARROW_DEFAULT_MEMORY_POOL.name: chosen or "system"})
    try:
        import pyarrow.compute

        pyarrow.default_memory_pool()
    finally:
        env.change({env.ARROW_DEFAULT_MEMORY_POOL.name: chosen})  # jobs that are resumed inherit it


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return found
