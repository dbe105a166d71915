"""Wrappers that warnings look through, so that a warning names the same line as without them."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., object])
_SKIPPED = " (importlib._bootstrap)"
"""`warnings.warn` counts no frame of a file whose name has both "importlib" and "_bootstrap". There
is no other way to say so of a function between a caller and the one that warns."""


def skipped_by_warnings(function: _Function) -> _Function:
    """Return a function whose frames `warnings.warn` does not count as callers (`stacklevel`).

    So a function that it calls warns of its caller's line, once a line, as if called directly.
    """
    plain = cast("FunctionType", function)
    code = plain.__code__
    plain.__code__ = code.replace(co_filename=named_for_warnings(code.co_filename))
    return function


def named_for_warnings(file: str) -> str:
    """Return a name of a code's file for which `warnings.warn` does not count the code's frames."""
    return f"{file}{_SKIPPED}"
