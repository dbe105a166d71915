"""The transform timer: one batch in several is timed exactly, call by call.

While such a batch is made, calls of methods of the dataset's objects (`__getitem__`, `__call__`)
and of plain functions held by them are relayed (`relayed_calls`). Nothing that a script holds is
replaced: types, attributes, identity and signatures stay as it made them. Afterwards everything is
restored, and other batches pay nothing.

Timing a call takes some 3 us, and more where the caches hold batch data. Where calls are short and
many, fewer batches are timed.
"""

from __future__ import annotations

import functools
import inspect
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from headrace.core.source_location import code_folders
from headrace.core.warning_frames import skipped_by_warnings
from headrace.observe.probe.recording_session import SESSION, guarded
from headrace.observe.probe.relayed_calls import (
    Undo,
    can_relay,
    plain_code,
    plain_copy,
    relay_calls,
    relaying_copy,
)
from headrace.observe.probe.timing_rates import TimingBudget, TimingRate
from headrace.records.schema import TRANSFORMS

_TRIAL_CALLS = 32
_FAR_APART_NS, _FAR_APART_FACTOR = 100_000, 5
"""If calls are further apart than this, timing one takes so many times what it takes in a loop: the
caches hold batch data, and code of changed classes starts slowly."""
_TRANSFORM_TIMING_BUDGET = TimingBudget(
    at_first=0, one_in=8, early_share=0.01, share=0.001, deep_share=0.01
)
_FLUSH_NS = 1_000_000_000
_MAX_DEPTH = 4  # datasets in datasets, Composes in Composes
_MAX_WRAPPED, _MAX_SEARCHED = 64, 512
_MAX_CONTAINER_LENGTH = 32  # a longer list or larger dictionary is data
_TRANSFORM_MODULE = re.compile(r"(^|\.)(transforms?|albumentations|kornia|augmentations)(\.|$)")

# Loader, batches to one timed batch, name, id of the code or class that is called.
_Call = tuple[int, int, str, int]


class TransformTimer:
    """Times calls while it is `active`, in the current batch, and sums them by name."""

    def __init__(self) -> None:
        self.active = False
        self._timing_rates: dict[int, TimingRate] = defaultdict(
            partial(TimingRate, _TRANSFORM_TIMING_BUDGET)
        )  # by loader
        self._calls = 0
        self._call_ns = 0.0  # cost of timing a call; 0: not known yet
        self._loader, self._one_in = -1, _TRANSFORM_TIMING_BUDGET.one_in  # of the current batch
        # By id of a relayed function, and of the object whose method it is (0: a plain function).
        self._labels: dict[int, dict[int, str]] = {}
        self._inside: set[tuple[int, int]] = set()
        # Ids of attribute dictionaries searched for the current batch.
        self._searched: set[int] = set()
        self._sums: dict[_Call, list[int]] = {}
        # With the code or class itself, so that its id stays unique.
        self._places: dict[_Call, tuple[Any, str, int]] = {}
        self._flushed_ns = time.monotonic_ns()

    def is_due(self, loader: int) -> bool:
        """Return whether to time the batch of a loader that begins."""
        return self._timing_rates[loader].is_due(on=SESSION.on, deep=SESSION.deep)

    def timing_if_due(self, dataset: Any, loader: int) -> AbstractContextManager[None]:
        """Return a context for making a batch, in which calls are timed if that is due."""
        return self.timing(dataset, loader) if self.is_due(loader) else nullcontext()

    @contextmanager
    def timing(self, dataset: Any, loader: int) -> Iterator[None]:
        """Time the calls of a dataset's transforms inside the block."""
        self._loader, self._one_in = loader, self._timing_rates[loader].one_in
        undo: list[Undo] = []
        began_ns = time.monotonic_ns()
        self._prepare(dataset, undo)
        self._calls = 0
        self.active = True
        prepared_ns = time.monotonic_ns()
        try:
            yield
        finally:
            self.active = False
            made_ns = time.monotonic_ns()
            for undo_one in reversed(undo):
                undo_one()
            self._labels.clear()
            wrapping_ns = time.monotonic_ns() - made_ns + prepared_ns - began_ns
            self._note_timing_cost(made_ns - prepared_ns, wrapping_ns)
            if time.monotonic_ns() - self._flushed_ns > _FLUSH_NS:
                self.flush()

    @guarded
    def _note_timing_cost(self, made_ns: int, wrapping_ns: int) -> None:
        """Adapt the rate to what timing a batch, made in `made_ns`, and wrapping cost."""
        if not self._call_ns:  # the first time is slow, and not typical
            self._call_ns = _cost_of_a_call_ns()
            return
        far_apart = made_ns > self._calls * _FAR_APART_NS
        call_ns = self._call_ns * (_FAR_APART_FACTOR if far_apart else 1)
        cost_ns = min(self._calls * call_ns, 0.9 * made_ns)
        cost_share = (cost_ns + wrapping_ns) / max(made_ns - cost_ns, 1)
        self._timing_rates[self._loader].weigh(cost_share)

    @skipped_by_warnings
    def call(
        self, name: str, code: Any, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function, timed under `name`; `code` is what was written in the script."""
        began_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        try:
            return function(*args, **kwargs)
        finally:
            self.add(name, code, time.monotonic_ns() - began_ns, time.thread_time_ns() - cpu_ns)

    @guarded
    def add(self, name: str, code: Any, wall_ns: int, cpu_ns: int) -> None:
        """Add a timed call."""
        self._calls += 1
        own = getattr(code, "__code__", None)
        kind = plain_code(own) if isinstance(own, CodeType) else type(code)
        key = (self._loader, self._one_in, name, id(kind))
        sums = self._sums.get(key)
        if sums is None:
            if key not in self._places:  # the lookup takes longer than a short call
                self._places[key] = (kind, *place_of(code))
            sums = self._sums[key] = [0, 0, 0]
        sums[0] += 1
        sums[1] += wall_ns
        sums[2] += cpu_ns

    @guarded
    def flush(self) -> None:
        """Write the sums."""
        sums, self._sums = self._sums, {}
        start_ns, self._flushed_ns = self._flushed_ns, time.monotonic_ns()
        for key, (calls, wall_ns, cpu_ns) in sums.items():
            loader, one_in, name, _ = key
            _, file, line = self._places[key]
            SESSION.write(
                TRANSFORMS, SESSION.rank, loader, SESSION.worker, name, file, line, start_ns,
                calls, wall_ns, cpu_ns, one_in,
            )  # fmt: skip

    def forget(self) -> None:
        """Drop sums of the parent process, which writes them itself."""
        self._sums.clear()
        self.active = False

    @guarded
    def _prepare(self, dataset: Any, undo: list[Undo]) -> None:
        name = type(dataset).__qualname__
        for method in ("__getitem__", "__getitems__"):
            self._time_method(dataset, method, f"{name}.{method}", undo)
        self._searched.clear()
        self._search(dataset, name, undo, 0)

    def _search(self, owner: Any, path: str, undo: list[Undo], depth: int) -> None:
        attributes = getattr(owner, "__dict__", None)
        if depth > _MAX_DEPTH or len(undo) >= _MAX_WRAPPED or type(attributes) is not dict:
            return
        if not self._is_new(attributes):
            return
        for name, value in list(attributes.items()):
            where = f"{path}.{name}"
            is_sequence = type(value) in {list, tuple}
            if is_sequence and all(map(callable, value)) and any(map(_is_transform, value)):
                self._search_chain(value, where, undo, depth)
            elif type(value) in {list, tuple, dict}:
                self._search_held(value, where, undo, depth)
            elif inspect.isfunction(value):
                self._time_function(value, where, undo)
            else:
                self._search_value(value, where, undo, depth)

    def _search_held(self, held: Any, where: str, undo: list[Undo], depth: int) -> None:
        """Search a list of datasets, such as ConcatDataset's, or a dictionary of transforms.

        Functions are not timed there: they show as lines of code.
        """
        if len(held) > _MAX_CONTAINER_LENGTH:  # it is data
            return
        for key, value in list(held.items() if type(held) is dict else enumerate(held)):
            place = f"{where}[{key}]"
            self._search_value(value, place, undo, depth)
            self._search_stage(value, place, undo, depth)

    def _search_value(self, value: Any, where: str, undo: list[Undo], depth: int) -> None:
        if inspect.isfunction(value):
            return
        if _is_transform(value):
            self._wrap_object(value, where, undo, depth)
        elif hasattr(type(value), "__getitem__") and not inspect.isclass(value):
            self._search(value, where, undo, depth + 1)

    def _search_stage(self, value: Any, where: str, undo: list[Undo], depth: int) -> None:
        """Search a library's object that calls others, such as a stage of a WebDataset pipeline.

        Functions are not timed there, either.
        """
        attributes = getattr(value, "__dict__", None)
        if depth >= _MAX_DEPTH or len(undo) >= _MAX_WRAPPED or type(attributes) is not dict:
            return
        if not _is_stage(value) or not self._is_new(attributes):
            return
        for name, inner in list(attributes.items()):
            if type(inner) in {list, tuple, dict}:
                self._search_held(inner, f"{where}.{name}", undo, depth + 1)
            else:
                self._search_value(inner, f"{where}.{name}", undo, depth + 1)

    def _is_new(self, attributes: dict[str, Any]) -> bool:
        """Return whether attributes were not searched yet, and the search limit is not reached."""
        known = id(attributes) in self._searched or len(self._searched) >= _MAX_SEARCHED
        self._searched.add(id(attributes))
        return not known

    def _search_chain(self, chain: Any, where: str, undo: list[Undo], depth: int) -> None:
        for number, item in enumerate(chain):
            place = f"{where}[{number}]"
            if inspect.isfunction(item):
                self._time_function(item, place, undo)
            elif _is_transform(item):
                self._wrap_object(item, place, undo, depth)
            else:
                self._search_stage(item, place, undo, depth)

    def _wrap_object(self, value: Any, where: str, undo: list[Undo], depth: int) -> None:
        self._time_method(value, "__call__", f"{where}: {_name_of(value)}", undo)
        self._search(value, where, undo, depth + 1)

    def _time_function(self, function: FunctionType, where: str, undo: list[Undo]) -> None:
        """Time a function, wherever it is called; it has the name of the first place it is in."""
        if id(function) in self._labels or not can_relay(function):
            return
        labels = self._labels[id(function)] = {0: f"{where}: {_name_of(function)}"}
        plain = plain_copy(function)
        undo.append(relay_calls(function, self._timed(plain, labels), plain))

    def _time_method(self, owner: Any, method: str, label: str, undo: list[Undo]) -> None:
        """Time a method of one object, in its class."""
        kind = type(owner)
        original = inspect.getattr_static(kind, method, None)
        labels = self._labels.get(id(original))
        if labels is not None:  # for another object of this class
            labels[id(owner)] = label
        if not inspect.isfunction(original) or not can_relay(original):
            return
        labels, plain = {id(owner): label}, plain_copy(original)
        call = self._timed(plain, labels, method)
        if vars(kind).get(method) is original:
            self._labels[id(original)] = labels
            undo.append(relay_calls(original, call, plain))
            return
        # The class that it is inherited from may have many other objects, as torch's Module has.
        with suppress(TypeError, AttributeError):  # the class may be immutable
            copy = relaying_copy(original, call, plain)
            setattr(kind, method, copy)
            self._labels[id(copy)] = labels
            undo.append(partial(_restore_method, kind, method, copy))

    def _timed(
        self, plain: FunctionType, labels: dict[int, str], method: str = ""
    ) -> Callable[..., Any]:
        """Return what times the calls of a function, or of a method of objects with a label."""

        @skipped_by_warnings
        def timed(*args: Any, **kwargs: Any) -> Any:
            owner = id(args[0]) if method and args else 0
            label, key = labels.get(owner), (id(plain), owner)
            # Another object; what still runs after the batch; or a call within a call of it.
            if label is None or not self.active or key in self._inside:
                return plain(*args, **kwargs)
            self._inside.add(key)
            began_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
            try:
                return plain(*args, **kwargs)
            finally:
                spent_ns = time.monotonic_ns() - began_ns
                self._inside.discard(key)
                code = args[0] if method == "__call__" else plain
                self.add(label, code, spent_ns, time.thread_time_ns() - cpu_ns)

        return timed


def _cost_of_a_call_ns() -> float:
    timer = TransformTimer()
    timer.active = True

    def timed() -> None:
        pass

    timer._time_function(timed, "", [])  # type: ignore[arg-type]  # noqa: SLF001 - of its own kind
    timed()  # the first call looks up its location
    began_ns = time.monotonic_ns()
    for _ in range(_TRIAL_CALLS):
        timed()
    return (time.monotonic_ns() - began_ns) / _TRIAL_CALLS


def place_of(code: Any) -> tuple[str, int]:
    """Return file and first line of a function, a method, or a callable object."""
    while isinstance(code, functools.partial):
        code = code.func
    if not hasattr(code, "__code__") and not inspect.ismethod(code):
        kind = type(code)
        code = getattr(kind, "forward", None) or inspect.getattr_static(kind, "__call__", None)
    found = getattr(inspect.unwrap(code) if callable(code) else code, "__code__", None)
    if found is None:
        return "", 0
    found = plain_code(found)
    return found.co_filename, found.co_firstlineno


def _restore_method(kind: type, method: str, ours: FunctionType) -> None:
    if vars(kind).get(method) is ours:  # otherwise the script has replaced it meanwhile
        delattr(kind, method)


def _is_transform(value: Any) -> bool:
    """Return whether a dataset's attribute is something that it may call on samples."""
    if inspect.isclass(value) or inspect.ismodule(value) or not callable(value):
        return False
    if inspect.isfunction(value):
        return True
    file, _ = place_of(value)
    known = _TRANSFORM_MODULE.search(type(value).__module__) is not None
    return bool(file) and (known or not code_folders().is_library(file))


def _is_stage(value: Any) -> bool:
    """Return whether it is a library's callable that may call others."""
    if inspect.isclass(value) or inspect.isroutine(value):
        return False
    is_other = _is_transform(value) or hasattr(type(value), "__getitem__")
    return callable(value) and not is_other


def _name_of(value: Any) -> str:
    return getattr(value, "__qualname__", None) or type(value).__qualname__


TRANSFORM_TIMER = TransformTimer()
