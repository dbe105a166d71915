"""Lines of a function that make something grow that outlives them, found by its source.

To store something costs no time, so no stack shows it: `losses.append(loss)` is done in a
microsecond. But a function that ran while memory grew was seen, and its source says what it adds to
and never empties: a list, a dict, a tensor that others are joined to, or a sum of losses, each of
which refers to its graph. Numbers (`loss.item()`) are too small to matter. What is found is likely,
not proven.
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
_MAX_DEPTH = 6  # names that stand for names


@lru_cache(maxsize=32)
def parse_source(source: str) -> ast.Module | None:
    """Return a file's source as a tree; None where it is no Python."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):  # written meanwhile, or no Python
        return None


def function_at(tree: ast.Module, name: str, line: int) -> FunctionNode | None:
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


def walk_statements(
    body: list[ast.stmt], loop: LoopNode | None
) -> Iterator[tuple[ast.stmt, LoopNode | None]]:
    """Yield each statement with the outermost loop around it; functions within are not entered."""
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
    """Yield the nodes of a function or a loop; those of functions within where they are asked."""
    for child in ast.iter_child_nodes(node):
        if nested or not isinstance(child, _Scope):
            yield child
            yield from walk_scope(child, nested=nested)


def container_of(expression: ast.expr) -> ast.expr:
    """Return what an element belongs to: log of log["loss"] and of log.setdefault(k, [])."""
    while True:
        match expression:
            case ast.Subscript(value=inner):
                expression = inner
            case ast.Call(func=ast.Attribute(value=inner, attr="setdefault" | "get")):
                expression = inner
            case _:
                return expression


def is_renewed_by(node: ast.AST, name: str) -> bool:
    """Whether a node sets a name anew, or takes something out of what it stands for."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if attr in _EMPTIES:
            return ast.unparse(container_of(owner)) == name
        case ast.Delete(targets=targets):
            return any(ast.unparse(container_of(target)) == name for target in targets)
        case ast.Assign(targets=[ast.Subscript(value=owner, slice=ast.Constant())], value=made):
            return (
                is_container(made) and ast.unparse(container_of(owner)) == name
            )  # log["loss"] = []
    return any(_is_target(target, name) for target in _targets(node))


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
    """Whether a function has a name of its own."""
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
    return isinstance(made, displays) or called_name(made) in _CONTAINERS


def is_small(value: ast.expr, function: FunctionNode, depth: int = 0) -> bool:
    """Whether a value is a number or a text, as far as the source tells."""
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
    """Return what a value is made of, or what a name stands for; nothing where not to be told."""
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
    """Yield what a name is set to in a function; the name itself where that is not to be told."""
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
    """Return the last name of what is called; empty where nothing is."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name
    return ""


def is_mentioned(value: ast.expr, name: str) -> bool:
    """Whether a value is made with what a name stands for."""
    return any(
        isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) == name
        for node in ast.walk(value)
    )


_ADDS = {"append", "appendleft", "extend"}
_MAY_ADD = {"add", "insert", "update", "setdefault"}
"""Of lists, sets and dicts; others have methods of these names that keep nothing."""
_JOINS = {"cat", "concat", "concatenate", "stack", "vstack", "hstack", "append"}
_SETUP_METHODS = {"__init__", "__post_init__", "setup"}
_DETACHED = {"detach", "item", "float", "int"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakCandidate:
    """A line that adds to something.

    Attributes:
        line: The line.
        what: To what, as it is written: history, self.cache.
        certainty: 2: it keeps what a graph hangs on; 1: it keeps something; 0: of its caller's.
    """

    line: int
    what: str
    certainty: int


def leak_candidates(source: str, function: str, line: int, *, stays: bool) -> list[LeakCandidate]:
    """Return the lines of a function that make something grow, the surest first.

    Args:
        source: The file's.
        function: The function's qualified name; `<module>` for the file itself.
        line: A line of it.
        stays: Whether one call lasts about as long as the run: then what it calls its own grows
            too. Otherwise only what it shares with others does.
    """
    tree = parse_source(source)
    node = function_at(tree, function, line) if tree is not None else None
    if tree is None or node is None:
        return []
    found = [
        growth
        for statement, loop in walk_statements(node.body, None)
        for what, values, joins in _additions(statement)
        if (
            growth := _Addition(tree, node, statement, loop, stays).leak_candidate(
                what, values, joins=joins
            )
        )
    ]
    return sorted(found, key=lambda growth: (-growth.certainty, growth.line))


@dataclass(frozen=True, slots=True)
class _Addition:
    """A statement that adds to something, and what is around it: of loops the outermost."""

    tree: ast.Module
    function: FunctionNode
    statement: ast.stmt
    loop: LoopNode | None
    stays: bool

    def leak_candidate(
        self, what: ast.expr, values: list[ast.expr], *, joins: bool
    ) -> LeakCandidate | None:
        """Return what grows there; None where it does not, or what is added is small.

        Args:
            what: What is added to.
            values: What is added.
            joins: Whether they are kept as they are; else they are summed up.
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
        return LeakCandidate(
            line=self.statement.lineno, what=ast.unparse(what), certainty=certainty
        )

    def _may_grow(self, name: str) -> bool:
        """Whether what is added to has no fixed size, as far as the source tells."""
        made = [
            node.value
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and node.value is not None
            and is_renewed_by(node, name)
        ]
        if any(isinstance(each, ast.Call) and has_limit(each) for each in made):
            return False
        match self.statement:
            case ast.Assign(targets=[ast.Subscript()]):
                pass
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=attr))) if attr in _MAY_ADD:
                pass
            case _:
                return True
        return any(map(is_container, made))

    def _outlives(self, what: ast.expr) -> int:
        """Return 2 where it lives on after the statement, 0 where perhaps, -1 where not."""
        name = ast.unparse(what)
        if self.loop is not None and (
            is_renewed_by(self.loop, name) or self._renewed(name, self.loop)
        ):
            return -1  # it begins anew with each batch, or with each epoch around them
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
        """Whether something is set anew there, or emptied; the statement itself aside."""
        return any(
            is_renewed_by(each, name)
            for each in walk_scope(within, nested=True)
            if each is not self.statement
        )

    def _renewed_elsewhere(self, name: str) -> bool:
        """Whether any function of the file sets it anew, but those that set it up."""
        return any(
            self._renewed(name, each)
            for each in ast.walk(self.tree)
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            and each.name not in _SETUP_METHODS
            and not (each is self.function and self.stays)
        )

    def _has_graph(self, value: ast.expr) -> bool:
        """Whether a value is, or holds, what backward is called on in this function."""
        if any(called_name(each) in _DETACHED for each in ast.walk(value)):
            return False
        names = {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}
        rooted = {
            each.func.value.id
            for each in ast.walk(self.function)
            if isinstance(each, ast.Call)
            and isinstance(each.func, ast.Attribute)
            and each.func.attr == "backward"
            and isinstance(each.func.value, ast.Name)
        }
        return bool(names & rooted)


def _additions(statement: ast.stmt) -> Iterator[tuple[ast.expr, list[ast.expr], bool]]:
    """Yield what a statement adds to, what it adds, and whether that is kept rather than summed."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=attr), args=args)):
            if attr in _ADDS | _MAY_ADD and args:
                yield container_of(owner), args[-1:] if attr != "update" else args, True
        case ast.AugAssign(target=target, op=ast.Add(), value=value):
            yield (
                container_of(target),
                [value],
                isinstance(value, ast.List | ast.Tuple | ast.ListComp),
            )
        case ast.Assign(targets=[ast.Subscript(value=owner, slice=key)], value=value):
            if not isinstance(key, ast.Constant | ast.Slice):
                yield container_of(owner), [value], True
        case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=value):
            same = ast.unparse(target)
            if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
                sides = [value.left, value.right]
                others = [side for side in sides if ast.unparse(side) != same]
                if len(others) == 1:
                    yield target, others, isinstance(others[0], ast.List)
            elif called_name(value) in _JOINS and is_mentioned(value, same):
                yield target, [value], True
