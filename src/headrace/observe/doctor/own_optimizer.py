"""An optimizer that a script has written itself: code that writes parameters by their gradients.

The probe sees torch's optimizers alone. Others are found in the source that was run: a function, a
loop or a `with` block that reads a gradient and changes tensors in place, without being the
training loop, which also calls backward.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from headrace.observe.doctor.leak_candidates import parse_source
from headrace.observe.doctor.stack_samples import StackSample, source_lines_as_run

_Block = ast.FunctionDef | ast.For | ast.With
_NO_UPDATES = frozenset({"zero_", "requires_grad_", "detach_", "clip_grad_norm_"})


def without_own_optimizer(samples: Iterable[StackSample]) -> list[StackSample]:
    """Return samples without those within code that writes parameters."""
    lines_of: dict[str, frozenset[int]] = {}
    kept = []
    for sample in samples:
        for frame in sample.frames:
            if frame.file not in lines_of:
                lines_of[frame.file] = _updating_lines(frame.file, sample.ran_since_s)
        if not any(frame.line in lines_of[frame.file] for frame in sample.frames):
            kept.append(sample)
    return kept


def _updating_lines(file: str, ran_since_s: float | None) -> frozenset[int]:
    source = "".join(source_lines_as_run(file, ran_since_s))
    tree = parse_source(source) if ".grad" in source else None
    blocks = (each for each in ast.walk(tree) if isinstance(each, _Block)) if tree else ()
    return frozenset(
        line
        for block in blocks
        if _updates_parameters(block)
        for line in range(block.lineno, (block.end_lineno or block.lineno) + 1)
    )


def _updates_parameters(block: _Block) -> bool:
    read = {node.attr for node in ast.walk(block) if isinstance(node, ast.Attribute)}
    if "grad" not in read or "backward" in read:
        return False
    names = frozenset(_bound_names(block))
    return any(_is_update(node, names) for node in ast.walk(block))


def _bound_names(block: _Block) -> Iterator[str]:
    """Yield the names of parameters of functions and of variables of loops, in a block."""
    for node in ast.walk(block):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.For | ast.comprehension):
            targets = ast.walk(node.target)
            yield from (each.id for each in targets if isinstance(each, ast.Name))


def _is_update(node: ast.AST, names: frozenset[str]) -> bool:
    """Return whether a statement or a call changes a tensor that it was given in place."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        return name.endswith("_") and not name.startswith("_") and name not in _NO_UPDATES
    if isinstance(node, ast.AugAssign):
        target: ast.AST = node.target
        return _is_data(target) or (isinstance(target, ast.Name) and target.id in names)
    return isinstance(node, ast.Assign) and any(map(_is_data, node.targets))


def _is_data(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "data"
