"""Which lines of a function make something grow that outlives them, told by the source.

Keeping costs no time, so no stack shows it: `losses.append(loss)` is done in a microsecond. But a
function that ran while memory grew was seen, and its source says what it adds to and never empties:
a list, a dict, a tensor that others are joined to, or a sum of losses, each of which keeps its
graph. Numbers (`loss.item()`) are too small to matter. What is found is likely, not proven.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.observe.doctor.syntax import (
    Function,
    Loop,
    called,
    function_at,
    has_limit,
    is_bound,
    is_container,
    is_small,
    mentions,
    parameters,
    parsed,
    renews,
    statements,
    walk,
    whole,
)

_ADDS = {"append", "appendleft", "extend"}
_MAY_ADD = {"add", "insert", "update", "setdefault"}
"""Of lists, sets and dicts; others have methods of these names that keep nothing."""
_JOINS = {"cat", "concat", "concatenate", "stack", "vstack", "hstack", "append"}
_BEGINNINGS = {"__init__", "__post_init__", "setup"}
_DETACHED = {"detach", "item", "float", "int"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A line that adds to something.

    Attributes:
        line: The line.
        what: To what, as it is written: history, self.cache.
        certainty: 2: it keeps what a graph hangs on; 1: it keeps something; 0: of its caller's.
    """

    line: int
    what: str
    certainty: int


def growing_lines(source: str, function: str, line: int, *, stays: bool) -> list[Growth]:
    """Return the lines of a function that make something grow, the surest first.

    Args:
        source: The file's.
        function: The function's qualified name; `<module>` for the file itself.
        line: A line of it.
        stays: Whether one call lasts about as long as the run: then what it calls its own grows
            too. Otherwise only what it shares with others does.
    """
    tree = parsed(source)
    node = function_at(tree, function, line) if tree is not None else None
    if tree is None or node is None:
        return []
    found = [
        growth
        for statement, loop in statements(node.body, None)
        for what, values, joins in _added(statement)
        if (growth := _Look(tree, node, statement, loop, stays).judge(what, values, joins=joins))
    ]
    return sorted(found, key=lambda growth: (-growth.certainty, growth.line))


@dataclass(frozen=True, slots=True)
class _Look:
    """A statement that adds to something, and what is around it: of loops the outermost."""

    tree: ast.Module
    function: Function
    statement: ast.stmt
    loop: Loop | None
    stays: bool

    def judge(self, what: ast.expr, values: list[ast.expr], *, joins: bool) -> Growth | None:
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
        return Growth(line=self.statement.lineno, what=ast.unparse(what), certainty=certainty)

    def _may_grow(self, name: str) -> bool:
        """Whether what is added to has no fixed size, as far as the source tells."""
        made = [
            node.value
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and node.value is not None
            and renews(node, name)
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
        if self.loop is not None and (renews(self.loop, name) or self._renewed(name, self.loop)):
            return -1  # it begins anew with each batch, or with each epoch around them
        if not isinstance(what, ast.Name):
            return -1 if self._renewed_elsewhere(name) else 2
        if isinstance(self.function, ast.Module):
            return 2 if self.loop is not None else -1
        if name in parameters(self.function):
            return 0
        if is_bound(name, self.function):
            return 2 if self.stays and self.loop is not None else -1
        return -1 if self._renewed_elsewhere(name) else 2

    def _renewed(self, name: str, within: ast.AST) -> bool:
        """Whether something is set anew there, or emptied; the statement itself aside."""
        return any(
            renews(each, name) for each in walk(within, nested=True) if each is not self.statement
        )

    def _renewed_elsewhere(self, name: str) -> bool:
        """Whether any function of the file sets it anew, but those that set it up."""
        return any(
            self._renewed(name, each)
            for each in ast.walk(self.tree)
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            and each.name not in _BEGINNINGS
            and not (each is self.function and self.stays)
        )

    def _has_graph(self, value: ast.expr) -> bool:
        """Whether a value is, or holds, what backward is called on in this function."""
        if any(called(each) in _DETACHED for each in ast.walk(value)):
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


def _added(statement: ast.stmt) -> Iterator[tuple[ast.expr, list[ast.expr], bool]]:
    """Yield what a statement adds to, what it adds, and whether that is kept rather than summed."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=attr), args=args)):
            if attr in _ADDS | _MAY_ADD and args:
                yield whole(owner), args[-1:] if attr != "update" else args, True
        case ast.AugAssign(target=target, op=ast.Add(), value=value):
            yield whole(target), [value], isinstance(value, ast.List | ast.Tuple | ast.ListComp)
        case ast.Assign(targets=[ast.Subscript(value=owner, slice=key)], value=value):
            if not isinstance(key, ast.Constant | ast.Slice):
                yield whole(owner), [value], True
        case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=value):
            same = ast.unparse(target)
            if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
                sides = [value.left, value.right]
                others = [side for side in sides if ast.unparse(side) != same]
                if len(others) == 1:
                    yield target, others, isinstance(others[0], ast.List)
            elif called(value) in _JOINS and mentions(value, same):
                yield target, [value], True
