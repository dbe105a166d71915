"""Numbers of loaders: one that a script makes anew, as for each epoch, keeps the number it had."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Hashable, Sequence
from itertools import count
from typing import Any

_OWN_REFERENCES = 4
"""A data set that nobody but its loader has: the loader, its sampler, and whoever counts, twice."""
_PLAIN = (bool, int, float, str, type(None))


class LoaderNumbers:
    """Numbers loaders in the order of their construction.

    A loader takes the number of an earlier one that is not iterated any more where the very same
    calls construct it with the same settings, and with the same data set; or with another, where
    nobody but the earlier loader has its data set still. So one that is made in each round counts
    as one, and those for training and evaluation, made by turns at one line, as two.
    """

    def __init__(self) -> None:
        self._next = count()
        self._made: dict[Hashable, list[int]] = {}  # by how: the one that was made last comes last
        self._iterators: dict[int, list[weakref.ref[Any]]] = {}  # since each was made last
        self._datasets: dict[int, Callable[[], Any]] = {}

    def new(self) -> int:
        """Return a number that no loader has."""
        return next(self._next)

    def constructed(self, arguments: Sequence[tuple[int | str, Any]]) -> int:
        """Return the number of a loader that is being constructed.

        Args:
            arguments: By place or name; the data set is at place 0.
        """
        dataset = next((value for name, value in arguments if name in (0, "dataset")), None)
        made = self._made.setdefault((_calls(), _described(arguments)), [])
        over = [number for number in made if self._is_over(number)]
        again = [number for number in over if self._datasets[number]() is dataset]
        again += [number for number in over if self._is_left(number)]
        number = again[0] if again else self.new()
        if again:
            made.remove(number)
            del self._iterators[number]
        made.append(number)
        self._datasets[number] = _reference(dataset)
        return number

    def iterated(self, number: int, iterator: Any) -> None:
        """Note an iterator of a loader."""
        known = self._iterators.get(number, ())
        alive = [each for each in known if each() is not None and each() is not iterator]
        self._iterators[number] = [*alive, weakref.ref(iterator)]

    def _is_over(self, number: int) -> bool:
        """Whether a loader has been iterated since it was constructed, and is not any more."""
        known = self._iterators.get(number)
        return known is not None and all(each() is None for each in known)

    def _is_left(self, number: int) -> bool:
        """Whether a loader's data set is gone, or would go with the loader."""
        dataset = self._datasets[number]()
        return dataset is None or sys.getrefcount(dataset) <= _OWN_REFERENCES


def _reference(dataset: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(dataset)
    except TypeError:  # a list, say
        return lambda: None


def _calls() -> Hashable:
    """Return the calls that led here: file and line of each frame, from the innermost on."""
    found, frame = [], sys._getframe(1).f_back  # noqa: SLF001 - inspect.stack reads source files
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def _described(arguments: Sequence[tuple[int | str, Any]]) -> Hashable:
    """Return the settings among arguments, and of what type all else is, by its name."""
    return tuple(
        (name, value if type(value) in _PLAIN else _type_name(value)) for name, value in arguments
    )


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
