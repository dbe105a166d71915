"""What the source of a function says of its names: where they are set, emptied, and to what."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias

Function: TypeAlias = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
Loop: TypeAlias = ast.For | ast.AsyncFor | ast.While
_Scope: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
_EMPTIES = {"clear", "pop", "popleft", "popitem", "remove", "discard"}
_CONTAINERS = {"list", "dict", "set", "deque", "defaultdict", "OrderedDict"}
_SMALL_CALLS = {
    "item", "float", "int", "len", "str", "bool", "round", "size", "numel", "format", "time",
    "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns", "memory_allocated",
}  # fmt: skip
_DEEPEST = 6  # names that stand for names


@lru_cache(maxsize=32)
def parsed(source: str) -> ast.Module | None:
    """Return a file's source as a tree; None where it is no Python."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):  # written meanwhile, or no Python
        return None


def function_at(tree: ast.Module, name: str, line: int) -> Function | None:
    """Return the function of this name around a line."""
    if name == "<module>":
        return tree
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name == name.rsplit(".", 1)[-1]
        and node.lineno <= line <= (node.end_lineno or line)
    ]
    return max(found, key=lambda node: node.lineno, default=None)


def statements(body: list[ast.stmt], loop: Loop | None) -> Iterator[tuple[ast.stmt, Loop | None]]:
    """Yield each statement with the outermost loop around it; functions within are not entered."""
    for statement in body:
        if isinstance(statement, _Scope):
            continue
        yield statement, loop
        inner = statement if loop is None and isinstance(statement, Loop) else loop
        for part in ("body", "orelse", "finalbody"):
            yield from statements(getattr(statement, part, []), inner)
        for handler in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from statements(handler.body, inner)


def walk(node: ast.AST, *, nested: bool = False) -> Iterator[ast.AST]:
    """Yield the nodes of a function or a loop; those of functions within where they are asked."""
    for child in ast.iter_child_nodes(node):
        if nested or not isinstance(child, _Scope):
            yield child
            yield from walk(child, nested=nested)


def whole(expression: ast.expr) -> ast.expr:
    """Return what an element belongs to: log of log["loss"] and of log.setdefault(k, [])."""
    while True:
        match expression:
            case ast.Subscript(value=inner):
                expression = inner
            case ast.Call(func=ast.Attribute(value=inner, attr="setdefault" | "get")):
                expression = inner
            case _:
                return expression


def renews(node: ast.AST, name: str) -> bool:
    """Whether a node sets a name anew, or takes something out of what it stands for."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if attr in _EMPTIES:
            return ast.unparse(whole(owner)) == name
        case ast.Delete(targets=targets):
            return any(ast.unparse(whole(target)) == name for target in targets)
        case ast.Assign(targets=[ast.Subscript(value=owner, slice=ast.Constant())], value=made):
            return is_container(made) and ast.unparse(whole(owner)) == name  # log["loss"] = []
    return any(_sets(target, name) for target in _targets(node))


def _targets(node: ast.AST) -> list[ast.expr]:
    """Return what a node sets."""
    match node:
        case ast.Assign(targets=targets):
            return targets
        case (
            ast.AnnAssign(target=target)
            | ast.NamedExpr(target=target)
            | ast.For(target=target)
            | ast.AsyncFor(target=target)
            | ast.withitem(optional_vars=ast.expr() as target)
        ):
            return [target]
    return []


def _sets(target: ast.expr, name: str) -> bool:
    match target:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return any(_sets(part, name) for part in parts)
        case ast.Starred(value=inner):
            return _sets(inner, name)
        case ast.Subscript(value=owner, slice=ast.Slice()):  # x[:] = []
            return ast.unparse(owner) == name
        case ast.Name() | ast.Attribute():
            return ast.unparse(target) == name
    return False


def is_bound(name: str, function: Function) -> bool:
    """Whether a function has a name of its own."""
    shared = {
        known
        for node in walk(function)
        if isinstance(node, ast.Global | ast.Nonlocal)
        for known in node.names
    }
    return name not in shared and any(_renews_name(node, name) for node in walk(function))


def _renews_name(node: ast.AST, name: str) -> bool:
    return any(_sets(target, name) for target in _targets(node))


def parameters(function: Function) -> set[str]:
    """Return the names of what a function is given."""
    if isinstance(function, ast.Module):
        return set()
    each = function.args
    named = (*each.posonlyargs, *each.args, *each.kwonlyargs, each.vararg, each.kwarg)
    return {one.arg for one in named if one is not None}


def has_limit(made: ast.Call) -> bool:
    """Whether it is a deque of a greatest length."""
    return any(keyword.arg == "maxlen" for keyword in made.keywords)


def is_container(made: ast.expr) -> bool:
    """Whether it is a list, a dict or a set, to be filled."""
    if isinstance(made, ast.BinOp):  # [None] * n
        made = made.left
    displays = ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp
    return isinstance(made, displays) or called(made) in _CONTAINERS


def is_small(value: ast.expr, function: Function, depth: int = 0) -> bool:
    """Whether a value is a number or a text, as far as the source tells."""
    if depth > _DEEPEST:
        return False
    match value:
        case ast.Call():
            return called(value) in _SMALL_CALLS
        case (
            ast.Constant()
            | ast.JoinedStr()
            | ast.Attribute(attr="shape")
            | ast.Subscript(value=ast.Attribute(attr="shape"))
        ):
            return True
    parts = _parts(value, function)
    return bool(parts) and all(is_small(part, function, depth + 1) for part in parts)


def _parts(value: ast.expr, function: Function) -> list[ast.expr]:
    """Return what a value is made of, or what a name stands for; nothing where not to be told."""
    match value:
        case ast.Name(id=name):
            return list(_given(name, function))
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.UnaryOp(operand=operand):
            return [operand]
        case (
            ast.Tuple(elts=elements)
            | ast.List(elts=elements)
            | ast.Set(elts=elements)
            | ast.Dict(values=elements)
        ):
            return elements
    return []


def _given(name: str, function: Function) -> Iterator[ast.expr]:
    """Yield what a name is set to in a function; the name itself where that is not to be told."""
    for node in walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=known)], value=value) if known == name:
                yield value
            case ast.AugAssign(target=ast.Name(id=known), value=value) if known == name:
                yield value
            case ast.For(target=ast.Name(id=known), iter=ast.Call(func=ast.Name(id="range"))):
                if known == name:
                    yield ast.Constant(0)
            case ast.For(
                target=ast.Tuple(elts=[ast.Name(id=known), *_]),
                iter=ast.Call(func=ast.Name(id="enumerate")),
            ) if known == name:
                yield ast.Constant(0)
            case _ if _renews_name(node, name):
                yield ast.Name(id=name, ctx=ast.Load())


def called(node: ast.AST) -> str:
    """Return the last name of what is called; empty where nothing is."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name
    return ""


def mentions(value: ast.expr, name: str) -> bool:
    """Whether a value is made with what a name stands for."""
    return any(
        isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) == name
        for node in ast.walk(value)
    )
