"""Reads that are repeated where what arrived is damaged, as bits may flip on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
MOST_READS = 4
"""So often is read what arrives damaged, before it counts as damaged where it is stored."""


def read_sound(read: Callable[[], _T], damaged: type[Exception]) -> _T:
    """Return what `read` returns; where it raises `damaged`, it is called again, a few times."""
    for _ in range(MOST_READS - 1):
        try:
            return read()
        except damaged:
            continue
    return read()
