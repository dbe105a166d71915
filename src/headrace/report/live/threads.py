"""Threads of the live page's server: those that give way to the job, and one that does not."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from starlette.requests import Request

from headrace.core.errors import HeadraceError

HasLeft = Callable[[], bool]
"""Returns whether a viewer no longer waits for an answer."""
_Result = TypeVar("_Result")
_NICENESS = 5


class ViewerLeftError(HeadraceError):
    """Nobody waits for the answer any more."""


def viewer_stays() -> bool:
    """Say that a viewer has not left."""
    return False


def give_way() -> None:
    """Give way to the job, as `headrace top` does: this thread alone, as others start jobs."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


async def in_background(act: Callable[..., _Result], *arguments: object) -> _Result:
    """Return a function's result, which a thread makes that gives way to the job."""

    def act_and_give_way() -> _Result:
        give_way()
        return act(*arguments)

    return await in_own_thread(act_and_give_way)


async def for_viewer(request: Request, act: Callable[[HasLeft], _Result]) -> _Result:
    """Return the same of a function that can ask whether the viewer has left.

    A page that moves on leaves its earlier requests; without this each would be answered in full.
    """
    left = threading.Event()
    watch = asyncio.create_task(_watch(request, left))
    try:
        return await in_background(act, left.is_set)
    finally:
        watch.cancel()


async def _watch(request: Request, left: threading.Event) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    left.set()


async def in_own_thread(act: Callable[..., _Result], *arguments: object) -> _Result:
    """Return the same from a new thread of this process's priority, which what it starts inherits.

    The process may end meanwhile, as nobody waits for an answer of a server that is ended.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[_Result] = loop.create_future()

    def settle(set_result: Callable[..., None], value: object) -> None:
        if not result.cancelled():
            set_result(value)

    def run() -> None:
        try:
            value = act(*arguments)
        except Exception as error:  # noqa: BLE001 - it is raised where the result is awaited
            found: tuple[Callable[..., None], object] = (result.set_exception, error)
        else:
            found = (result.set_result, value)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, *found)

    threading.Thread(target=run, daemon=True, name="answer").start()
    return await result
