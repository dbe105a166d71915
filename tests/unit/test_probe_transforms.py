"""While a batch's transforms are timed, a script cannot tell them from what it made."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import types
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from torch import nn

from headrace.observe.probe import transform_timer
from headrace.observe.probe.relayed_calls import plain_copy, relay_calls
from headrace.observe.probe.transform_timer import TransformTimer

FREE = 3


def joint(image: int, mask: int = 2, *more: int, by: int = 1, **named: int) -> list[Any]:
    """Return what it got."""
    return [image, mask, more, by, named]


def only_by_place(a: int, /, b: int = 5, **a_too: int) -> list[Any]:
    return [a, b, a_too]


def only_named(*, a: int, b: int = 2) -> list[int]:
    return [a, b]


def warns(_value: int) -> None:
    warnings.warn("of its caller", stacklevel=2)


def stream(count: int) -> Any:
    yield from range(count)


async def later() -> int:
    return 1


def closure() -> Callable[[int], int]:
    added = 1

    def add(value: int, by: int = 2) -> int:
        return value + by + added + FREE

    return add


class Base:
    def __call__(self, value: int, *, by: int = 1) -> int:
        return value + by

    def bound(self, value: int) -> int:
        return value


class Derived(Base):
    __slots__ = ()


class Slotted:
    __slots__ = ("by",)

    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, value: int) -> int:
        return super().__hash__() * 0 + value + self.by


class Streams:
    def __call__(self, count: int) -> Any:
        yield from range(count)


class Layer(nn.Module):
    def forward(self, value: int) -> int:
        return value + 1


class Dataset:
    """A dataset that holds a transform, and others of which it may call some."""

    def __init__(self, transform: Any, *others: Any) -> None:
        self.transform, self.others = transform, list(others)

    def __getitem__(self, index: int) -> Any:
        return self.transform(index)


HELD: list[Any] = [
    joint, only_by_place, only_named, warns, stream, later, closure(), lambda image: image,
    functools.partial(joint, 1), functools.lru_cache(joint), functools.wraps(joint)(closure()),
    Base(), Derived(), Slotted(1), Streams(), Layer(), Base().bound, len, Base,
]  # fmt: skip


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> TransformTimer:
    def raise_fault(_where: str, error: Exception) -> None:
        raise error

    monkeypatch.setattr(transform_timer.SESSION, "_failed", False)
    monkeypatch.setattr(transform_timer.SESSION, "fault", raise_fault)
    return TransformTimer()


def face(value: Any) -> list[Any]:
    """Return what a script may ask of something that it calls."""
    name = "__call__"
    functions = [value, getattr(value, name, None), getattr(type(value), name, None)]
    found: list[Any] = []
    for each in functions:
        code = getattr(each, "__code__", None)
        if code is not None:
            found += [
                code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags,
                code.co_name, code.co_qualname, code.co_firstlineno, len(code.co_freevars),
                code.co_varnames[: code.co_argcount], each.__defaults__, each.__kwdefaults__,
                each.__closure__, each.__globals__ is globals(), each.__name__, each.__doc__,
            ]  # fmt: skip
        for ask in (
            inspect.signature, inspect.getfullargspec, inspect.isfunction, inspect.ismethod,
            inspect.isgeneratorfunction, inspect.iscoroutinefunction, type,
            callable, inspect.getsource, inspect.getmodule, vars,
        ):  # fmt: skip
            try:
                found.append(ask(each))
            except (TypeError, ValueError, OSError) as error:
                found.append(type(error))
    with suppress(pickle.PicklingError, AttributeError, TypeError):
        found.append(pickle.dumps(value))
    return [*found, hash(value), isinstance(value, types.FunctionType)]


@pytest.mark.parametrize("held", HELD, ids=[str(n) for n, _ in enumerate(HELD)])
def test_what_a_dataset_holds_looks_the_same_while_it_is_timed(timer: TransformTimer, held: Any):
    dataset = Dataset(held, joint, Derived())
    before, code = face(held), getattr(held, "__code__", None)
    for _ in range(2):
        with timer.timing(dataset, 0):
            assert dataset.transform is held
            assert dataset.others[0] is joint
            assert face(held) == before
            assert copy.copy(dataset).transform is held
        assert face(held) == before
        assert getattr(held, "__code__", None) is code
    assert "__call__" not in vars(Derived)


def test_calls_are_timed_by_what_is_called(timer: TransformTimer):
    derived, base = Derived(), Base()
    dataset = Dataset(closure(), joint, derived, base, Layer())
    for _ in range(3):
        with timer.timing(dataset, 0):
            assert dataset[1] == 7
            assert dataset.transform(1, by=1) == 6
            assert joint(1, 3, 4, by=5, c=6) == dataset.others[0](1, 3, 4, by=5, c=6)
            assert [derived(1), derived(1, by=2), base(1), Base()(1)] == [2, 3, 2, 2]
            assert dataset.others[3](1) == 2
        assert dataset[1] == 7
    calls: Counter[str] = Counter()
    for (_, _, name, _), sums in timer._sums.items():
        calls[name] += sums[0]
    assert calls == {
        "Dataset.__getitem__": 3,
        "Dataset.transform: closure.<locals>.add": 6,
        "Dataset.others[0]: joint": 6,
        "Dataset.others[1]: Derived": 6,
        "Dataset.others[2]: Base": 3,
        "Dataset.others[3]: Layer": 3,
    }
    places = {name: place for (_, _, name, _), (_, *place) in timer._places.items()}
    assert places["Dataset.others[0]: joint"] == [__file__, joint.__code__.co_firstlineno]
    assert places["Dataset.others[3]: Layer"] == [__file__, Layer.forward.__code__.co_firstlineno]
    code_ids = {(name, code) for _, _, name, code in timer._places}
    assert len(code_ids) == len(calls)  # the same in each batch


def recursive(depth: int) -> int:
    return 1 + recursive(depth - 1) if depth else 0


def test_a_call_within_a_call_is_part_of_it(timer: TransformTimer):
    with timer.timing(Dataset(recursive), 0):
        assert recursive(5) == 5
    assert [sums[0] for sums in timer._sums.values()] == [1]


WRONG: list[Callable[[], Any]] = [
    joint, lambda: only_by_place(b=1), lambda: only_named(1), lambda: Base()(by=2),
    Base.__call__, lambda: joint(1, image=2), lambda: warns(1, 2),
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_an_error_as_ever(timer: TransformTimer, wrong: Callable[[], Any]):
    with pytest.raises(TypeError) as expected:
        wrong()
    with timer.timing(Dataset(joint, only_by_place, only_named, Base(), warns), 0), pytest.raises(
        TypeError
    ) as found:  # fmt: skip
        wrong()
    assert str(found.value) == str(expected.value)


def test_every_argument_arrives(timer: TransformTimer):
    calls: list[Callable[[], Any]] = [
        lambda: joint(1), lambda: joint(1, 2, 3, 4, by=5, z=6), lambda: joint(image=1, mask=3),
        lambda: only_by_place(1, a=2, self=3), lambda: only_named(a=1, b=3),
    ]  # fmt: skip
    expected = [call() for call in calls]
    with timer.timing(Dataset(joint, only_by_place, only_named, Base()), 0):
        assert [call() for call in calls] == expected


def test_a_function_warns_of_its_callers_line(timer: TransformTimer):
    dataset = Dataset(warns)
    with timer.timing(dataset, 0), pytest.warns(UserWarning, match="of its caller") as caught:
        dataset[0]
    assert caught[0].filename == __file__
    line = Dataset.__getitem__.__code__.co_firstlineno + 1
    assert caught[0].lineno == line


def test_code_that_the_script_sets_meanwhile_stays(timer: TransformTimer):
    def held(value: int) -> int:
        return value

    with timer.timing(Dataset(held), 0):
        held.__code__ = (lambda value: -value).__code__
    assert held(1) == -1
    with timer.timing(Dataset(Derived()), 0):
        Derived.__call__ = Base.bound
    assert "__call__" in vars(Derived)
    del Derived.__call__


def test_what_is_made_of_the_code_of_a_relayed_function_calls_the_plain_one():
    plain = plain_copy(joint)
    calls: list[Any] = []
    undo = relay_calls(joint, lambda *args, **named: calls.append((args, named)), plain)
    try:
        joint(1)
        (relay,) = (each for each in joint.__code__.co_consts if type(each).__name__ == "_Relay")
        kind, arguments, state = relay.__reduce__()
        assert (kind, arguments, state["call"]) == (types.SimpleNamespace, (), plain)
    finally:
        undo()
    assert calls == [((1, 2), {"by": 1})]
