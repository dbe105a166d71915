"""Functions whose calls go through a function of ours for a while, and that nobody can tell apart.

A script may compare a function by identity, hash or pickle it, and ask for its parameters. So it
stays where it is, and only its code is another for the while: one of the same name, kind, line and
parameters, which hands the arguments on. What runs then is a copy with the function's own code.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from functools import lru_cache, partial
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

from headrace.core.warning_frames import named_for_warnings

Undo = Callable[[], None]
_STARTED_ONLY = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
"""Flags of functions whose call only makes an object that runs later."""
_PLACE = "headrace"  # of the relay, among a code's constants


class _Relay:
    """What a code hands its arguments to; it pickles as what calls the plain function."""

    __slots__ = ("call", "plain")

    def __init__(self, call: Callable[..., Any], plain: FunctionType) -> None:
        self.call, self.plain = call, plain

    def __reduce__(self) -> tuple[Any, ...]:
        return SimpleNamespace, (), {"call": self.plain}


def can_relay(function: object) -> bool:
    """Return whether it is a Python function that runs when it is called, and has its own code."""
    if not inspect.isfunction(function) or function.__code__.co_flags & _STARTED_ONLY:
        return False
    return plain_code(function.__code__) is function.__code__


def plain_copy(function: FunctionType) -> FunctionType:
    """Return a function that does the same, for calls that give all arguments."""
    code, name = function.__code__, function.__name__
    return FunctionType(code, function.__globals__, name, None, function.__closure__)


def relay_calls(function: FunctionType, call: Callable[..., Any], plain: FunctionType) -> Undo:
    """Hand a function's calls to `call`, until what is returned is called."""
    before = function.__code__
    function.__code__ = ours = _relaying(before, _Relay(call, plain))
    return partial(_restore, function, ours, before)


def relaying_copy(
    function: FunctionType, call: Callable[..., Any], plain: FunctionType
) -> FunctionType:
    """Return a function like another one, whose calls go to `call`."""
    code = _relaying(function.__code__, _Relay(call, plain))
    copy = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    for name in ("__kwdefaults__", "__annotations__", "__doc__", "__module__", "__qualname__"):
        setattr(copy, name, getattr(function, name))
    vars(copy).update(vars(function))
    return copy


def plain_code(code: CodeType) -> CodeType:
    """Return the code that a function has when its calls are not relayed."""
    relays = (each for each in code.co_consts if type(each) is _Relay)
    return next((relay.plain.__code__ for relay in relays), code)


def _restore(function: FunctionType, ours: CodeType, before: CodeType) -> None:
    if function.__code__ is ours:  # otherwise the script has changed it meanwhile
        function.__code__ = before


def _relaying(code: CodeType, relay: _Relay) -> CodeType:
    """Return code with the face of another one, which calls a relay."""
    ours = _template(code)
    file = named_for_warnings(code.co_filename)
    # `inspect.getsource` finds it by this, asking for the lines only then.
    linecache.cache.setdefault(file, (lambda: "".join(linecache.getlines(code.co_filename)),))
    consts: tuple[Any, ...] = tuple(relay if each == _PLACE else each for each in ours.co_consts)
    return ours.replace(
        co_consts=consts,
        co_flags=code.co_flags,
        co_filename=file,
        co_firstlineno=code.co_firstlineno,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
    )


@lru_cache(maxsize=256)
def _template(code: CodeType) -> CodeType:
    """Return code of these parameters and free variables that calls a method of a constant."""
    parameters, arguments = _parameters(code)
    free = ", ".join(code.co_freevars)
    # Named without being loaded, a variable is a free one of the code, as it is of the original.
    body = f"{_PLACE!r}.call({arguments})" + (f" if 1 else ({free},)" if free else "")
    source = f"lambda {free}: lambda {parameters}: {body}"
    outer = compile(source, "", "eval", dont_inherit=True).co_consts[0]
    return next(each for each in outer.co_consts if isinstance(each, CodeType))


def _parameters(code: CodeType) -> tuple[str, str]:
    """Return the text of a code's parameters, and that of the arguments that hand them on."""
    count = code.co_argcount
    names = code.co_varnames[: count + code.co_kwonlyargcount]
    rest = iter(code.co_varnames[len(names) :])
    parameters, arguments = list(names[:count]), list(names[:count])
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    if code.co_flags & inspect.CO_VARARGS:
        parameters.append(f"*{next(rest)}")
        arguments.append(parameters[-1])
    elif code.co_kwonlyargcount:
        parameters.append("*")
    parameters += names[count:]
    arguments += [f"{name}={name}" for name in names[count:]]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parameters.append(f"**{next(rest)}")
        arguments.append(parameters[-1])
    return ", ".join(parameters), ", ".join(arguments)
