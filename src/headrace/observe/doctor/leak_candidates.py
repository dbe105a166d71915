"""Lines of a function that make something grow which outlives the function, found by its source.

Storing something takes no time, so no stack sample shows it: `losses.append(loss)` takes a
microsecond. But a function that ran while memory grew was sampled, and its source shows what it
adds to and never empties: a list, a dict, a tensor that others are concatenated to, or a sum of
losses, each of which refers to its graph. Numbers (`loss.item()`) are too small to matter. What is
found is likely, not proven.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

FunctionNode: TypeAlias = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
LoopNode: TypeAlias = ast.For | ast.AsyncFor | ast.While
_Scope: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
_EMPTIES = {"clear", "pop", "popleft", "popitem", "remove", "discard"}
_CONTAINERS = {"list", "dict", "set", "deque", "defaultdict", "OrderedDict"}
_SMALL_CALLS = {
    "item", "float", "int", "len", "str", "bool", "round", "size", "numel", "format", "time",
    "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns", "memory_allocated",
}  # fmt: skip
_MAX_DEPTH = 6  # names that refer to names


@lru_cache(maxsize=32)
def parse_source(source: str) -> ast.Module | None:
    """Return a file's syntax tree; None if it is not valid Python."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):  # changed since the run, or not Python
        return None


def function_at(tree: ast.Module, name: str, line: int) -> FunctionNode | None:
    """Return the innermost function of this name around a line."""
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


def walk_statements(
    body: list[ast.stmt], loop: LoopNode | None
) -> Iterator[tuple[ast.stmt, LoopNode | None]]:
    """Yield each statement with its outermost loop, without entering nested functions."""
    for statement in body:
        if isinstance(statement, _Scope):
            continue
        yield statement, loop
        inner = statement if loop is None and isinstance(statement, LoopNode) else loop
        for part in ("body", "orelse", "finalbody"):
            yield from walk_statements(getattr(statement, part, []), inner)
        for handler in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from walk_statements(handler.body, inner)


def walk_scope(node: ast.AST, *, nested: bool = False) -> Iterator[ast.AST]:
    """Yield the nodes of a function or loop; those of nested functions if `nested`."""
    for child in ast.iter_child_nodes(node):
        if nested or not isinstance(child, _Scope):
            yield child
            yield from walk_scope(child, nested=nested)


def container_of(expression: ast.expr) -> ast.expr:
    """Return the container of an element: log for log["loss"] and log.setdefault(k, [])."""
    while True:
        match expression:
            case ast.Subscript(value=inner):
                expression = inner
            case ast.Call(func=ast.Attribute(value=inner, attr="setdefault" | "get")):
                expression = inner
            case _:
                return expression


def is_renewed_by(node: ast.AST, name: str) -> bool:
    """Return whether a node reassigns a name, or removes something from its value."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if attr in _EMPTIES:
            return ast.unparse(container_of(owner)) == name
        case ast.Delete(targets=targets):
            return any(ast.unparse(container_of(target)) == name for target in targets)
        case ast.Assign(targets=[ast.Subscript(value=owner, slice=ast.Constant())], value=made):
            # such as log["loss"] = []
            return is_container(made) and ast.unparse(container_of(owner)) == name
    return any(_is_target(target, name) for target in _targets(node))


def _targets(node: ast.AST) -> list[ast.expr]:
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


def _is_target(target: ast.expr, name: str) -> bool:
    match target:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return any(_is_target(part, name) for part in parts)
        case ast.Starred(value=inner):
            return _is_target(inner, name)
        case ast.Subscript(value=owner, slice=ast.Slice()):  # x[:] = []
            return ast.unparse(owner) == name
        case ast.Name() | ast.Attribute():
            return ast.unparse(target) == name
    return False


def is_bound(name: str, function: FunctionNode) -> bool:
    """Return whether a name is local to a function."""
    shared = {
        known
        for node in walk_scope(function)
        if isinstance(node, ast.Global | ast.Nonlocal)
        for known in node.names
    }
    return name not in shared and any(_is_assigned_by(node, name) for node in walk_scope(function))


def _is_assigned_by(node: ast.AST, name: str) -> bool:
    return any(_is_target(target, name) for target in _targets(node))


def parameter_names(function: FunctionNode) -> set[str]:
    """Return the names of a function's parameters."""
    if isinstance(function, ast.Module):
        return set()
    args = function.args
    named = (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg)
    return {arg.arg for arg in named if arg is not None}


def is_container(made: ast.expr) -> bool:
    """Return whether an expression makes a list, dict or set."""
    if isinstance(made, ast.BinOp):  # [None] * n
        made = made.left
    displays = ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp
    return isinstance(made, displays) or called_name(made) in _CONTAINERS


def is_small(value: ast.expr, function: FunctionNode, depth: int = 0) -> bool:
    """Return whether a value is a number or text, as far as the source shows."""
    if depth > _MAX_DEPTH:
        return False
    match value:
        case ast.Call():
            return called_name(value) in _SMALL_CALLS
        case (
            ast.Constant()
            | ast.JoinedStr()
            | ast.Attribute(attr="shape")
            | ast.Subscript(value=ast.Attribute(attr="shape"))
        ):
            return True
    parts = _parts(value, function)
    return bool(parts) and all(is_small(part, function, depth + 1) for part in parts)


def _parts(value: ast.expr, function: FunctionNode) -> list[ast.expr]:
    """Return the parts of a value, or the values of a name; empty if unknown."""
    match value:
        case ast.Name(id=name):
            return list(_assigned_values(name, function))
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


def _assigned_values(name: str, function: FunctionNode) -> Iterator[ast.expr]:
    """Yield the values assigned to a name in a function; the name itself where unknown."""
    for node in walk_scope(function):
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
            case _ if _is_assigned_by(node, name):
                yield ast.Name(id=name, ctx=ast.Load())


def called_name(node: ast.AST) -> str:
    """Return the last name of what a node calls; empty if it is no call."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name
    return ""


_ADDS = {"append", "appendleft", "extend"}
_MAY_ADD = {"add", "insert", "update", "setdefault"}
"""Methods of lists, sets and dicts; other types have methods of these names that store nothing."""
_JOINS = {"cat", "concat", "concatenate", "stack", "vstack", "hstack", "append"}
_SETUP_METHODS = {"__init__", "__post_init__", "setup"}
_DETACHED = {"detach", "item", "float", "int"}


@dataclass(frozen=True, slots=True)
class LeakCandidate:
    """A line that adds to something."""

    line: int
    what: str  # as written: history, self.cache
    certainty: int  # 2: it stores what holds a graph; 1: it stores something; 0: to an argument


def leak_candidates(source: str, function: str, line: int, *, stays: bool) -> list[LeakCandidate]:
    """Return the lines of a function that make something grow, the surest first.

    `line` is any of the function. If it `stays`, one call lasts about as long as the run: then
    local variables count too, otherwise only shared ones.
    """
    tree = parse_source(source)
    node = function_at(tree, function, line) if tree is not None else None
    if tree is None or node is None:
        return []
    found = [
        _Addition(tree, node, statement, loop, stays).leak_candidate(what, values, joins=joins)
        for statement, loop in walk_statements(node.body, None)
        for what, values, joins in _additions(statement)
    ]
    return sorted(filter(None, found), key=lambda growth: (-growth.certainty, growth.line))


@dataclass(frozen=True, slots=True)
class _Addition:
    """A statement that adds to something, with its function and outermost loop."""

    tree: ast.Module
    function: FunctionNode
    statement: ast.stmt
    loop: LoopNode | None
    stays: bool

    def leak_candidate(
        self, what: ast.expr, values: list[ast.expr], *, joins: bool
    ) -> LeakCandidate | None:
        """Return what grows there; None if nothing does, or what is added is small.

        `joins`: the values are stored rather than summed.
        """
        if all(is_small(value, self.function) for value in values):
            return None
        if not self._may_grow(ast.unparse(what)):
            return None
        keeps_graph = any(self._has_graph(value) for value in values)
        outlives = self._outlives(what)
        if outlives < 0 or not (joins or keeps_graph):
            return None
        certainty = min(outlives, 2 if keeps_graph else 1)
        return LeakCandidate(self.statement.lineno, ast.unparse(what), certainty)

    def _may_grow(self, name: str) -> bool:
        """Return whether what is added to has no fixed size, as far as the source shows."""
        made = [
            node.value
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and node.value is not None
            and is_renewed_by(node, name)
        ]
        calls = [value for value in made if isinstance(value, ast.Call)]
        if any(keyword.arg == "maxlen" for call in calls for keyword in call.keywords):
            return False  # a deque with a maximum length
        match self.statement:
            case ast.Assign(targets=[ast.Subscript()]):
                pass
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=attr))) if attr in _MAY_ADD:
                pass
            case _:
                return True
        return any(map(is_container, made))

    def _outlives(self, what: ast.expr) -> int:
        """Return 2 if it outlives the statement, 0 if it may, -1 if not."""
        name = ast.unparse(what)
        if self.loop is not None and (
            is_renewed_by(self.loop, name) or self._renewed(name, self.loop)
        ):
            return -1  # renewed with each batch, or with each epoch
        if not isinstance(what, ast.Name):
            return -1 if self._renewed_elsewhere(name) else 2
        if isinstance(self.function, ast.Module):
            return 2 if self.loop is not None else -1
        if name in parameter_names(self.function):
            return 0
        if is_bound(name, self.function):
            return 2 if self.stays and self.loop is not None else -1
        return -1 if self._renewed_elsewhere(name) else 2

    def _renewed(self, name: str, within: ast.AST) -> bool:
        """Return whether another statement there reassigns or empties a name."""
        return any(
            is_renewed_by(node, name)
            for node in walk_scope(within, nested=True)
            if node is not self.statement
        )

    def _renewed_elsewhere(self, name: str) -> bool:
        """Return whether any function of the file, except for setup methods, renews a name."""
        return any(
            self._renewed(name, node)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name not in _SETUP_METHODS
            and not (node is self.function and self.stays)
        )

    def _has_graph(self, value: ast.expr) -> bool:
        """Return whether a value is, or holds, something that this function calls backward on."""
        if any(called_name(node) in _DETACHED for node in ast.walk(value)):
            return False
        names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
        rooted = {
            node.func.value.id
            for node in ast.walk(self.function)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "backward"
            and isinstance(node.func.value, ast.Name)
        }
        return bool(names & rooted)


def _additions(statement: ast.stmt) -> Iterator[tuple[ast.expr, list[ast.expr], bool]]:
    """Yield what a statement adds to, what it adds, and whether that is stored, not summed."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=attr), args=args)):
            if attr in _ADDS | _MAY_ADD and args:
                yield container_of(owner), args[-1:] if attr != "update" else args, True
        case ast.AugAssign(target=target, op=ast.Add(), value=value):
            stores = isinstance(value, ast.List | ast.Tuple | ast.ListComp)
            yield container_of(target), [value], stores
        case ast.Assign(targets=[ast.Subscript(value=owner, slice=key)], value=value):
            if not isinstance(key, ast.Constant | ast.Slice):
                yield container_of(owner), [value], True
        case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=value):
            same = ast.unparse(target)
            if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
                others = [side for side in [value.left, value.right] if ast.unparse(side) != same]
                if len(others) == 1:
                    yield target, others, isinstance(others[0], ast.List)
            elif called_name(value) in _JOINS and any(
                isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) == same
                for node in ast.walk(value)
            ):
                yield target, [value], True
