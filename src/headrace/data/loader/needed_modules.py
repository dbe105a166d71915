"""The modules that a dataset needs in workers, found before it is sent to them."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from headrace.data.loader.dataset_protocol import NativeDataset

_MOST_OBJECTS = 2000  # inspected, nearest first: a dataset may hold an index of millions
_MOST_ITEMS = 32  # of a list: one of samples is as long as the dataset


def modules_of(dataset: Any, collate_fn: Any) -> list[str]:
    """Return the modules that a dataset, its transforms and collate_fn are defined in or use.

    Objects defined in the script itself are pickled by value, and workers then import the modules
    that their code names. That may take seconds, so it starts when the loader is made.
    """
    modules: set[str] = set(dataset.modules) if isinstance(dataset, NativeDataset) else set()
    seen: dict[int, Any] = {}
    parts = deque([dataset, collate_fn])
    while parts and len(seen) < _MOST_OBJECTS:
        part = parts.popleft()
        if id(part) in seen:
            continue
        seen[id(part)] = part  # held, so that no other object gets its id
        if isinstance(part, ModuleType):
            modules.add(part.__name__)
            continue
        if isinstance(part, type | FunctionType):
            modules.add(part.__module__)
        parts.extend(_parts_of(part))
    return sorted(modules - {"__main__", "builtins"})


def _parts_of(part: Any) -> Iterator[Any]:
    """Yield the objects pickled with an object, as far as they may need modules."""
    if isinstance(part, list | tuple):
        yield from part[:_MOST_ITEMS]
    elif isinstance(part, type):
        if part.__module__ == "__main__":
            yield from part.__bases__
            yield from (value for value in vars(part).values() if isinstance(value, FunctionType))
    elif isinstance(part, FunctionType):
        if part.__module__ == "__main__":
            yield from _globals_named_in(part)
    elif isinstance(part, MethodType):
        yield from (part.__func__, part.__self__)
    elif isinstance(part, functools.partial):
        yield from (part.func, *part.args, *part.keywords.values())
    elif type(part).__module__ != "builtins":
        yield from (type(part), *getattr(part, "__dict__", {}).values())


def _globals_named_in(function: FunctionType) -> Iterator[Any]:
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [value for value in code.co_consts if isinstance(value, CodeType)]
        for name in code.co_names:
            if name in function.__globals__:
                yield function.__globals__[name]
