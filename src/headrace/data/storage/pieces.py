"""Data that is written: bytes, a local file, or pieces that come one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from headrace.core.errors import HeadraceError
from headrace.data.storage.store import PutData

_T = TypeVar("_T")
_READ_BYTES = 4 * 2**20


def is_repeatable(data: PutData) -> bool:
    """Tell whether `data` can be had again, as a stream cannot."""
    return isinstance(data, bytes | bytearray | memoryview | Path)


def pieces_of(data: PutData) -> Iterator[bytes | bytearray | memoryview]:
    """Yield `data` piece by piece; a file is read in pieces of 4 MiB."""
    if isinstance(data, Path):
        with data.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                yield piece
    elif isinstance(data, bytes | bytearray | memoryview):
        yield data
    else:
        yield from data


def regrouped(pieces: Iterable[bytes | bytearray | memoryview], size: int) -> Iterator[bytes]:
    """Yield the same bytes in pieces of exactly `size`, but for the last; none where none came."""
    waiting = bytearray()
    for piece in pieces:
        view = memoryview(piece).cast("B")
        if waiting:
            missing = size - len(waiting)
            waiting += view[:missing]
            view = view[missing:]
            if len(waiting) < size:
                continue
            yield bytes(waiting)
            waiting.clear()
        whole = len(view) - len(view) % size
        for start in range(0, whole, size):
            yield bytes(view[start : start + size])
        waiting += view[whole:]
    if waiting:
        yield bytes(waiting)


def done_future(work: Callable[[], _T]) -> Future[_T]:
    """Return a future that already holds what `work` returned, or the error of ours it raised."""
    future: Future[_T] = Future()
    try:
        future.set_result(work())
    except HeadraceError as error:
        future.set_exception(error)
    return future
