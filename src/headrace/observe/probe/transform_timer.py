"""The timer of transforms: one batch in some is timed exactly, call by call.

While such a batch is made, the methods that the dataset's objects are called by (`__getitem__`,
`__call__`, `forward`) are wrapped in their classes, and plain functions that it holds are replaced
by wrapped ones. No object is replaced: types, attributes and identity stay what the script made
them. Afterwards everything is as it was, and other batches pay nothing.
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from headrace.core.source_location import is_library
from headrace.observe.probe.recording_session import SESSION, guarded
from headrace.observe.probe.sampling_rates import TimingBudget, TimingRate
from headrace.records.schema import TRANSFORMS

_TRIAL_CALLS = 32
_FAR_APART_NS, _FAR_APART_FACTOR = 100_000, 5
"""Where this passes from one call to the next, to time it takes so many times what it takes in a
loop: caches hold what the batch is made of, and code whose classes were changed begins slowly."""
_TRANSFORM_TIMING_BUDGET = TimingBudget(
    at_first=0, one_in=8, early_share=0.01, share=0.001, deep_share=0.01
)
_FLUSH_NS = 1_000_000_000
_MAX_DEPTH = 4  # datasets in datasets, Composes in Composes
_MAX_WRAPPED, _MAX_SEARCHED = 64, 512
_MAX_CONTAINER_LENGTH = 32  # a longer list, or a larger dictionary, is data
_TRANSFORM_MODULE = re.compile(r"(^|\.)(transforms?|albumentations|kornia|augmentations)(\.|$)")

Undo = Callable[[], None]
# Loader, one batch in how many, name, identity of the code or class that is called.
_Call = tuple[int, int, str, int]


class TransformTimer:
    """Times calls and adds them up by name.

    Attributes:
        active: Whether the batch at work is timed.
    """

    def __init__(self) -> None:
        self.active = False
        self._rhythms: dict[int, TimingRate] = defaultdict(
            partial(TimingRate, _TRANSFORM_TIMING_BUDGET)
        )  # by loader
        self._calls = 0
        self._call_ns = 0.0  # what it takes to time one; 0: not known yet
        self._loader, self._one_in = -1, _TRANSFORM_TIMING_BUDGET.one_in  # of the batch at work
        self._labels: dict[tuple[str, int], str] = {}  # by method and object
        self._inside: set[tuple[str, int]] = set()
        self._searched: set[int] = set()  # attributes of objects, in the batch that is timed now
        self._sums: dict[_Call, list[int]] = {}
        self._places: dict[_Call, tuple[Any, str, int]] = {}  # and what is called: ids stay its own
        self._flushed_ns = time.monotonic_ns()

    def is_due(self, loader: int) -> bool:
        """Whether the batch of a loader that begins is to be timed."""
        return self._rhythms[loader].is_due(on=SESSION.on, deep=SESSION.deep)

    @contextmanager
    def timing(self, dataset: Any, loader: int) -> Iterator[None]:
        """Time what the dataset calls, inside the block."""
        self._loader, self._one_in = loader, self._rhythms[loader].one_in
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
            for each in reversed(undo):
                each()
            self._labels.clear()
            beside_ns = time.monotonic_ns() - made_ns + prepared_ns - began_ns
            self._note_timing_cost(made_ns - prepared_ns, beside_ns)
            if time.monotonic_ns() - self._flushed_ns > _FLUSH_NS:
                self.flush()

    @guarded
    def _note_timing_cost(self, made_ns: int, beside_ns: int) -> None:
        """Look at what timing took: of the batch, made in `made_ns`, and before and after it."""
        if not self._call_ns:  # the first time all is slow, and says nothing of the next
            self._call_ns = _cost_of_a_call_ns()
            return
        far_apart = made_ns > self._calls * _FAR_APART_NS
        call_ns = self._call_ns * (_FAR_APART_FACTOR if far_apart else 1)
        cost_ns = min(self._calls * call_ns, 0.9 * made_ns)
        cost_share = (cost_ns + beside_ns) / max(made_ns - cost_ns, 1)
        self._rhythms[self._loader].weigh(cost_share)

    def call(
        self, name: str, code: Any, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function, timed under this name; `code` tells where it is written."""
        began_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        try:
            return function(*args, **kwargs)
        finally:
            self.add(name, code, time.monotonic_ns() - began_ns, time.thread_time_ns() - cpu_ns)

    @guarded
    def add(self, name: str, code: Any, wall_ns: int, cpu_ns: int) -> None:
        """Add a call."""
        self._calls += 1
        kind = getattr(code, "__code__", None) or type(code)
        key = (self._loader, self._one_in, name, id(kind))
        sums = self._sums.get(key)
        if sums is None:
            if key not in self._places:  # to look it up takes longer than a short call
                self._places[key] = (kind, *place_of(code))
            sums = self._sums[key] = [0, 0, 0]
        sums[0] += 1
        sums[1] += wall_ns
        sums[2] += cpu_ns

    @guarded
    def flush(self) -> None:
        """Write what was added up."""
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
        """Drop what a parent process added up: it is the parent's to tell."""
        self._sums.clear()
        self.active = False

    @guarded
    def _prepare(self, dataset: Any, undo: list[Undo]) -> None:
        name = type(dataset).__qualname__
        for method in ("__getitem__", "__getitems__"):
            self._wrap_method(dataset, method, f"{name}.{method}", undo)
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
            if type(value) in {list, tuple} and value and _is_chain(value):
                self._search_chain(attributes, name, where, undo, depth)
            elif type(value) in {list, tuple, dict}:
                self._search_held(value, where, undo, depth)
            elif _is_function(value):
                attributes[name] = self.wrapped(value, f"{where}: {_name_of(value)}")
                undo.append(partial(_restore, attributes, name, attributes[name], value))
            else:
                self._search_value(value, where, undo, depth)

    def _search_held(self, held: Any, where: str, undo: list[Undo], depth: int) -> None:
        """Search a list of datasets, as ConcatDataset has one, or a dictionary of transforms.

        Functions stay there: a script may look them up, or know them by their identity.
        """
        if len(held) > _MAX_CONTAINER_LENGTH:  # that is data
            return
        for key, value in list(held.items() if type(held) is dict else enumerate(held)):
            place = f"{where}[{key}]"
            self._search_value(value, place, undo, depth)
            self._search_stage(value, place, undo, depth)

    def _search_value(self, value: Any, where: str, undo: list[Undo], depth: int) -> None:
        if _is_function(value):
            return
        if _is_transform(value):
            self._wrap_object(value, where, undo, depth)
        elif hasattr(type(value), "__getitem__") and not inspect.isclass(value):
            self._search(value, where, undo, depth + 1)

    def _search_stage(self, value: Any, where: str, undo: list[Undo], depth: int) -> None:
        """Search what a library's object calls: a stage of a WebDataset pipeline, say.

        Functions stay there: the stages of an epoch are at work, and hold theirs already.
        """
        attributes = getattr(value, "__dict__", None)
        if depth >= _MAX_DEPTH or len(undo) >= _MAX_WRAPPED or type(attributes) is not dict:
            return
        if not _is_stage(value) or not self._is_new(attributes):
            return
        for name, held in list(attributes.items()):
            if type(held) in {list, tuple, dict}:
                self._search_held(held, f"{where}.{name}", undo, depth + 1)
            else:
                self._search_value(held, f"{where}.{name}", undo, depth + 1)

    def _is_new(self, attributes: dict[str, Any]) -> bool:
        """Whether they were not searched yet: a dataset may be there twice; and there is time."""
        known = id(attributes) in self._searched or len(self._searched) >= _MAX_SEARCHED
        self._searched.add(id(attributes))
        return not known

    def _search_chain(
        self, attributes: dict[str, Any], name: str, where: str, undo: list[Undo], depth: int
    ) -> None:
        chain, timed = attributes[name], []
        for number, each in enumerate(chain):
            place = f"{where}[{number}]"
            if _is_function(each):
                timed.append(self.wrapped(each, f"{place}: {_name_of(each)}"))
                continue
            timed.append(each)
            if _is_transform(each):
                self._wrap_object(each, place, undo, depth)
            else:
                self._search_stage(each, place, undo, depth)
        if any(_is_function(each) for each in chain):
            attributes[name] = type(chain)(timed)
            undo.append(partial(_restore, attributes, name, attributes[name], chain))

    def _wrap_object(self, value: Any, where: str, undo: list[Undo], depth: int) -> None:
        self._wrap_method(value, "__call__", f"{where}: {_name_of(value)}", undo)
        self._search(value, where, undo, depth + 1)

    def _wrap_method(self, owner: Any, method: str, label: str, undo: list[Undo]) -> None:
        """Time a method of one object: wrapped in its class, which may have others of the kind."""
        kind = type(owner)
        original = inspect.getattr_static(kind, method, None)
        if not inspect.isfunction(original):
            return
        key = (method, id(owner))
        self._labels[key] = label
        if getattr(original, "_headrace_times", None) is not None:
            return  # another object of this class came before
        wrapped = self._method(method, original)
        own = method in vars(kind)
        with suppress(TypeError, AttributeError):  # a class that does not let itself be changed
            setattr(kind, method, wrapped)
            undo.append(partial(_restore_method, kind, method, original if own else None))

    def _method(self, method: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def timed(owner: Any, *args: Any, **kwargs: Any) -> Any:
            key = (method, id(owner))
            label = self._labels.get(key)
            if label is None or key in self._inside:  # not asked for, or super()'s part of a call
                return original(owner, *args, **kwargs)
            self._inside.add(key)
            began_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
            try:
                return original(owner, *args, **kwargs)
            finally:
                spent_ns = time.monotonic_ns() - began_ns
                self._inside.discard(key)
                code = owner if method == "__call__" else original
                self.add(label, code, spent_ns, time.thread_time_ns() - cpu_ns)

        timed._headrace_times = method  # type: ignore[attr-defined]  # noqa: SLF001
        return timed

    def wrapped(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return the function, timed under this name."""
        return _TimedFunction(self, function, name)


class _TimedFunction:
    """Stands for a function that a dataset holds; pickled, as for a pool, it is that function.

    Args:
        timer: Is told of calls.
        function: The function.
        name: Its name there.
    """

    def __init__(self, timer: TransformTimer, function: Callable[..., Any], name: str) -> None:
        functools.update_wrapper(self, function)
        self._headrace = timer, function, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        timer, function, name = self._headrace
        if not timer.active:  # a generator of the dataset holds it on
            return function(*args, **kwargs)
        began_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        try:
            return function(*args, **kwargs)
        finally:
            spent_ns = time.monotonic_ns() - began_ns
            timer.add(name, function, spent_ns, time.thread_time_ns() - cpu_ns)

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.itemgetter(0), ((self._headrace[1],),)


def _cost_of_a_call_ns() -> float:
    """Return what it takes to time a call, in nanoseconds."""
    timer = TransformTimer()
    timer.active = True
    timed = timer.wrapped(lambda: None, "")
    timed()  # the first looks up where it is written
    began_ns = time.monotonic_ns()
    for _ in range(_TRIAL_CALLS):
        timed()
    return (time.monotonic_ns() - began_ns) / _TRIAL_CALLS


def place_of(code: Any) -> tuple[str, int]:
    """Return file and first line of a function, a method, or an object that is called."""
    while isinstance(code, functools.partial):
        code = code.func
    if not hasattr(code, "__code__") and not inspect.ismethod(code):
        kind = type(code)
        code = getattr(kind, "forward", None) or inspect.getattr_static(kind, "__call__", None)
    found = getattr(inspect.unwrap(code) if callable(code) else code, "__code__", None)
    return (found.co_filename, found.co_firstlineno) if found is not None else ("", 0)


def _restore(attributes: dict[str, Any], name: str, timed: Any, original: Any) -> None:
    if attributes.get(name) is timed:  # else the script has put another there meanwhile
        attributes[name] = original


def _restore_method(kind: type, method: str, own: Any) -> None:
    if own is None:
        delattr(kind, method)
    else:
        setattr(kind, method, own)


def _is_function(value: Any) -> bool:
    return inspect.isfunction(value)


def _is_transform(value: Any) -> bool:
    """Whether a dataset's attribute is something that it may call on samples."""
    if inspect.isclass(value) or inspect.ismodule(value) or not callable(value):
        return False
    if type(value) is _TimedFunction:  # the dataset took it from where it stood in, and keeps it
        return False
    if inspect.isfunction(value):
        return True
    file, _ = place_of(value)
    known = _TRANSFORM_MODULE.search(type(value).__module__) is not None
    return bool(file) and (known or not is_library(file))


def _is_stage(value: Any) -> bool:
    """Whether it is a library's object that may call others."""
    if inspect.isclass(value) or inspect.isroutine(value) or type(value) is _TimedFunction:
        return False
    is_other = _is_transform(value) or hasattr(type(value), "__getitem__")
    return callable(value) and not is_other


def _is_chain(values: Sequence[Any]) -> bool:
    """Whether these are callables to go through, some of them transforms."""
    return all(map(callable, values)) and any(map(_is_transform, values))


def _name_of(value: Any) -> str:
    return getattr(value, "__qualname__", None) or type(value).__qualname__


TRANSFORM_TIMER = TransformTimer()
