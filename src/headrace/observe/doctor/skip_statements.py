"""Statements of loops that skip batches or samples, found by source: `if ...: continue`.

A training loop that puts a batch aside, as in `tasks.append(batch)`, does not skip it, though
nothing is computed with it until others have come. Only tests and names may look at it before.

A stream that gives each worker its part keeps one sample of so many: `if number % workers != own`.
What it does before that statement, each worker does for the samples of all others, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from headrace.observe.doctor.leak_candidates import parse_source

_Loop = ast.For | ast.AsyncFor | ast.While


def skip_statement(source: str, line: int) -> int | None:
    """Return the line of the statement that skips batches of the loop that asks for them.

    Args:
        source: Of the file.
        line: At which the loop asks for a batch: that of its `for`, or of `batch = next(batches)`.

    Returns:
        None if the loop skips none, or does something with a batch first.
    """
    tree = parse_source(source)
    found = None if tree is None else _asking_loop(tree, line)
    if found is None:
        return None
    asked, body = found
    return _first_skip(body, set(_names(asked)))


def part_statement(source: str, line: int) -> int | None:
    """Return the line of the statement that gives a worker its part of what a line makes.

    Args:
        source: Of the file.
        line: Of what a worker does in a generator; what follows the statement is done for its part.

    Returns:
        None where the line is in no loop with such a statement after it.
    """
    tree = parse_source(source)
    for loop in ast.walk(tree) if tree is not None else ():
        match loop:
            case ast.For(iter=called) | ast.AsyncFor(iter=called) | ast.YieldFrom(value=called):
                if called.lineno <= line <= (called.end_lineno or line) and _is_islice(called):
                    return called.lineno
        if isinstance(loop, ast.For | ast.AsyncFor | ast.While):
            inside = [each.lineno <= line <= (each.end_lineno or line) for each in loop.body]
            asks = loop.lineno <= line < loop.body[0].lineno
            begin = 0 if asks else (inside.index(True) + 1 if any(inside) else len(inside))
            for statement in loop.body[begin:]:
                if isinstance(statement, ast.If) and _keeps_one_of_many(statement, loop.body):
                    return statement.lineno
    return None


def _is_islice(node: ast.expr) -> bool:
    """Return whether a node is `islice(samples, own, None, workers)`."""
    match node:
        case ast.Call(
            func=ast.Name(id="islice") | ast.Attribute(attr="islice"), args=[_, _, _, step]
        ):
            return not isinstance(step, ast.Constant)
    return False


def _keeps_one_of_many(statement: ast.If, body: list[ast.stmt]) -> bool:
    """Return whether it is `if number % workers != own: continue`, or yields where they agree.

    One that yields what the loop's body has gathered ends a batch, and keeps all of it.
    """
    counts = [each for each in ast.walk(statement.test) if isinstance(each, ast.Compare)]
    skips = isinstance(statement.body[-1], ast.Continue)
    yielded = [
        each.value
        for each in ast.walk(statement)
        if isinstance(each, ast.Yield | ast.YieldFrom) and each.value is not None
    ]
    gathered = set(_gathered(body, statement))
    ends_batch = any(
        ast.unparse(part) in gathered
        for value in yielded
        for part in ast.walk(value)
        if isinstance(part, ast.Name | ast.Attribute)
    )
    is_part = any(_is_own_number(each) for each in counts) and not statement.orelse
    return is_part and not ends_batch and (skips or bool(yielded))


def _is_own_number(test: ast.Compare) -> bool:
    """Return whether a test compares a number's remainder with a worker's, which is no constant.

    That of a position in a group says how long the group is on both sides: `n % size == size - 1`.
    """
    sides = [test.left, *test.comparators]
    divided = [
        each for each in sides if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mod)
    ]
    if not divided or any(isinstance(each, ast.Constant) for each in sides):
        return False
    size = ast.unparse(divided[0].right)
    others = [each for each in sides if each not in divided]
    others += [each.left for each in divided[1:]]
    return not any(ast.unparse(part) == size for each in others for part in ast.walk(each))


_GATHERS = {"append", "extend", "add", "put", "update"}


def _gathered(body: list[ast.stmt], end: ast.If) -> Iterator[str]:
    """Yield what a loop's statements add to, as its source: lists, sets, sums that `end` resets."""
    reset = {
        ast.unparse(target)
        for statement in end.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
    }
    for node in (inner for statement in body for inner in ast.walk(statement)):
        match node:
            case ast.Call(func=ast.Attribute(value=target, attr=name)) if name in _GATHERS:
                yield ast.unparse(target)
            case ast.AugAssign(target=target) if ast.unparse(target) in reset:
                yield ast.unparse(target)
            case ast.Assign(targets=[ast.Subscript(value=target)]):
                yield ast.unparse(target)


def _asking_loop(tree: ast.Module, line: int) -> tuple[list[ast.expr], list[ast.stmt]] | None:
    """Return what the innermost loop names a batch that it asks for at a line, and what follows."""
    found = None
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For | ast.AsyncFor):
            if loop.lineno <= line <= (loop.iter.end_lineno or loop.lineno):
                found = [_without_number(loop)], loop.body
        elif isinstance(loop, ast.While):
            for place, statement in enumerate(loop.body):
                within = statement.lineno <= line <= (statement.end_lineno or statement.lineno)
                targets = _targets(
                    statement.body[0] if isinstance(statement, ast.Try) else statement
                )
                if within and targets:
                    found = targets, loop.body[place + 1 :]
    return found


def _without_number(loop: ast.For | ast.AsyncFor) -> ast.expr:
    """Return the target of a loop, without the number of `for number, batch in enumerate(...)`."""
    match loop.target, loop.iter:
        case ast.Tuple(elts=[_, batch]), ast.Call(func=ast.Name(id="enumerate")):
            return batch
    return loop.target


def _first_skip(body: list[ast.stmt], names: set[str]) -> int | None:
    """Return the line of the first statement that skips a batch, known under `names`."""
    for place, statement in enumerate(body):
        if isinstance(statement, ast.If) and not statement.orelse:
            uses = any(_mentions(inner, names) for inner in statement.body)
            if isinstance(statement.body[-1], ast.Continue) and not uses:
                return statement.lineno
            if uses:  # the batch is used here alone, if at all
                later = any(_mentions(other, names) for other in body[place + 1 :])
                return None if later else statement.lineno
        elif isinstance(statement, ast.Assign | ast.AnnAssign) and _is_renaming(statement, names):
            names |= set(_names(_targets(statement)))
        elif _mentions(statement, names):
            return None
    return None


def _is_renaming(statement: ast.Assign | ast.AnnAssign, names: set[str]) -> bool:
    """Return whether a statement gives a batch, or a part of it, another name."""
    targets = _targets(statement)
    plain = all(isinstance(part, ast.Name) for part in _parts(targets))
    return plain and statement.value is not None and _mentions(statement.value, names)


def _targets(statement: ast.stmt) -> list[ast.expr]:
    match statement:
        case ast.Assign(targets=targets):
            return targets
        case ast.AnnAssign(target=target):
            return [target]
    return []


def _parts(targets: list[ast.expr]) -> Iterator[ast.expr]:
    """Yield what a tuple of targets, or of tuples of them, assigns to."""
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from _parts(target.elts)
        else:
            yield target.value if isinstance(target, ast.Starred) else target


def _names(targets: list[ast.expr]) -> Iterator[str]:
    return (part.id for part in _parts(targets) if isinstance(part, ast.Name))


def _mentions(node: ast.AST, names: set[str]) -> bool:
    """Return whether a statement uses any of some names beyond looking at them in a test."""
    return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node))
