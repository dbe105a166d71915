"""Pickling for the training process, whose `__main__` is the script: its classes stay its own.

In a worker the script is not `__main__`; its classes came there by value. Sent back in the same
way they would be laid over the training process's own with each batch, and what the script has set
on them since would be undone. So they go back by name.
"""

from __future__ import annotations

import io
import sys
from functools import reduce
from typing import Any

import cloudpickle

_MAIN = "__main__"


def of_main(name: str) -> Any:
    """Return what the script defines under a qualified name; AttributeError where it does not."""
    return reduce(getattr, name.split("."), sys.modules[_MAIN])


class HomePickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles what a worker made, for the training process."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how `obj` is pickled: what the script defines by its name, all else as usual."""
        if getattr(obj, "__module__", None) == _MAIN and (
            isinstance(obj, type) or (callable(obj) and hasattr(obj, "__code__"))
        ):
            name = getattr(obj, "__qualname__", "<")
            if "<" not in name:
                return of_main, (name,)
        return super().reducer_override(obj)


def pickled_for_home(obj: object) -> bytes:
    """Return `obj` pickled for the training process."""
    buffer = io.BytesIO()
    HomePickler(buffer).dump(obj)
    return buffer.getvalue()
