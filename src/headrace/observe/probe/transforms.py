"""How long each transform takes: one batch in some is timed exactly, call by call.

While such a batch is made, the callables that the dataset holds (its transform, the children of
Compose-like objects, datasets inside datasets) are replaced by timed ones; afterwards they are as
they were. Other batches pay nothing.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.core.places import is_library
from headrace.observe.probe.session import SESSION
from headrace.records.schema import TRANSFORMS

ONE_IN = 8  # batches
_FLUSH_NS = 1_000_000_000
_DEEPEST = 4  # datasets in datasets, Composes in Composes
_MOST_PLACES = 64


class TransformTimer:
    """Times calls and adds them up by name.

    Attributes:
        active: Whether the batch at work is timed.
    """

    def __init__(self) -> None:
        self.active = False
        self._one_in = ONE_IN
        self._batches = 0
        self._loader = -1
        self._places: dict[int, list[_Place]] = {}
        self._sums: dict[tuple[str, str, int], list[int]] = {}
        self._flushed_ns = time.monotonic_ns()

    def is_due(self) -> bool:
        """Whether the batch that begins is to be timed; the first is not, it warms up."""
        self._batches += 1
        self._one_in = 1 if SESSION.deep else ONE_IN
        return SESSION.on and self._batches > 1 and (self._batches - 2) % self._one_in == 0

    @contextmanager
    def timing(self, dataset: Any, loader: int) -> Iterator[None]:
        """Time what the dataset calls, inside the block."""
        self._loader = loader
        places = self._places.get(id(dataset))
        if places is None:
            places = self._places[id(dataset)] = self._find(dataset)
        replaced = [place for place in places if place.replace()]
        self.active = True
        try:
            yield
        finally:
            self.active = False
            for place in reversed(replaced):
                place.restore()
            if time.monotonic_ns() - self._flushed_ns > _FLUSH_NS:
                self.flush()

    def call(self, name: str, code: Any, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function, timed under this name; `code` tells where it is written."""
        began_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        try:
            return function(*args)
        finally:
            self.add(name, code, time.monotonic_ns() - began_ns, time.thread_time_ns() - cpu_ns)

    def add(self, name: str, code: Any, wall_ns: int, cpu_ns: int) -> None:
        """Add a call."""
        sums = self._sums.setdefault((name, *place_of(code)), [0, 0, 0])
        sums[0] += 1
        sums[1] += wall_ns
        sums[2] += cpu_ns

    def flush(self) -> None:
        """Write what was added up."""
        sums, self._sums = self._sums, {}
        start_ns, self._flushed_ns = self._flushed_ns, time.monotonic_ns()
        for (name, file, line), (calls, wall_ns, cpu_ns) in sums.items():
            SESSION.write(
                TRANSFORMS, SESSION.rank, self._loader, SESSION.worker, name, file, line, start_ns,
                calls, wall_ns, cpu_ns, self._one_in,
            )  # fmt: skip

    def _find(self, dataset: Any) -> list[_Place]:
        found: list[_Place] = []
        self._search(dataset, type(dataset).__qualname__, found, 0)
        return found

    def _search(self, owner: Any, path: str, found: list[_Place], depth: int) -> None:
        if depth > _DEEPEST or len(found) >= _MOST_PLACES:
            return
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            where = f"{path}.{name}"
            if isinstance(value, (list, tuple)) and value and all(map(_is_transform, value)):
                self._search_chain(owner, name, value, where, found, depth)
            elif _is_transform(value):
                found.append(_Place(self, owner, name, value, f"{where}: {_name_of(value)}"))
                self._search(value, where, found, depth + 1)
            elif hasattr(type(value), "__getitem__") and hasattr(value, "__dict__"):
                self._search(value, where, found, depth + 1)

    def _search_chain(
        self, owner: Any, name: str, chain: Any, where: str, found: list[_Place], depth: int
    ) -> None:
        timed = [
            self.timed(each, f"{where}[{number}]: {_name_of(each)}")
            for number, each in enumerate(chain)
        ]
        found.append(_Place(self, owner, name, chain, where, type(chain)(timed)))
        for number, each in enumerate(chain):
            self._search(each, f"{where}[{number}]", found, depth + 1)

    def timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a callable that does the same, and is timed."""
        return _Timed(self, function, name)


class _Timed:
    """A callable that is timed and otherwise looks like its original."""

    def __init__(self, timer: TransformTimer, function: Callable[..., Any], name: str) -> None:
        self._headrace_timer, self._headrace_name = timer, name
        self._headrace_function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        began_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        try:
            return self._headrace_function(*args, **kwargs)
        finally:
            self._headrace_timer.add(
                self._headrace_name, self._headrace_function,
                time.monotonic_ns() - began_ns, time.thread_time_ns() - cpu_ns,
            )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        return getattr(self._headrace_function, name)


class _Place:
    """An attribute that holds a callable, or a chain of them, and what it is replaced by."""

    def __init__(
        self, timer: TransformTimer, owner: Any, name: str, value: Any, label: str,
        timed: Any = None,
    ) -> None:  # fmt: skip
        self._owner, self._name, self._value = owner, name, value
        self._timed = timer.timed(value, label) if timed is None else timed

    def replace(self) -> bool:
        """Put the timed one in place, unless the script has put another there meanwhile."""
        attributes = self._owner.__dict__
        if attributes.get(self._name) is not self._value:
            return False
        attributes[self._name] = self._timed
        return True

    def restore(self) -> None:
        """Put the original back, unless the script has put another there meanwhile."""
        attributes = self._owner.__dict__
        if attributes.get(self._name) is self._timed:
            attributes[self._name] = self._value


def place_of(code: Any) -> tuple[str, int]:
    """Return file and first line of a function, a method, or an object that is called."""
    if not hasattr(code, "__code__") and not inspect.ismethod(code):
        code = getattr(type(code), "forward", None) or type(code).__dict__.get("__call__")
    found = getattr(inspect.unwrap(code) if callable(code) else code, "__code__", None)
    return (found.co_filename, found.co_firstlineno) if found is not None else ("", 0)


def _is_transform(value: Any) -> bool:
    """Whether a dataset's attribute is something it may call on samples."""
    if inspect.isclass(value) or inspect.ismodule(value) or not callable(value):
        return False
    if inspect.isfunction(value) or inspect.ismethod(value):
        return True
    file, _ = place_of(value)
    return not is_library(file) or "transform" in type(value).__module__


def _name_of(value: Any) -> str:
    return getattr(value, "__qualname__", None) or type(value).__qualname__


TIMER = TransformTimer()
