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
                if isinstance(statement, ast.If) and _keeps_one_of_many(statement):
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


def _keeps_one_of_many(statement: ast.If) -> bool:
    """Return whether it is `if number % workers != own: continue`, or yields where they agree."""
    counts = [each for each in ast.walk(statement.test) if isinstance(each, ast.Compare)]
    is_own = any(
        any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod) for part in sides)
        and not any(isinstance(part, ast.Constant) for part in sides)
        for sides in ([each.left, *each.comparators] for each in counts)
    )
    skips = isinstance(statement.body[-1], ast.Continue)
    yields = any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(statement))
    return is_own and not statement.orelse and (skips or yields)


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
