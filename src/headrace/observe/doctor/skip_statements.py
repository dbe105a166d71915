"""The statement of a training loop that skips a batch, found by its source: `if ...: continue`.

A batch that is put aside, as in `tasks.append(batch)`, is not skipped, though nothing is computed
with it until others have come. Only tests and names may look at it before the statement.
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
