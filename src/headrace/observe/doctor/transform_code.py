"""Which transform of a dataset a place in its code belongs to: by the stacks that were seen there.

Where a function begins is recorded of each transform, and where it ends is in its source. A place
is the transform's if it is in that function, or in what the function calls in the same file; or if
it calls the transform, which is a library's, and is there for most of its time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from headrace.observe.doctor.evidence import TransformShare
from headrace.observe.doctor.leak_candidates import parse_source
from headrace.observe.doctor.stack_frames import StackFrame
from headrace.observe.doctor.stack_samples import Hotspot, StackSample, source_lines_as_run

_LEAST_AGREEMENT = 0.4
"""Of a place's share that a transform has, by its own clock, to be named."""
_LEAST_INSIDE = 0.5
"""Of a place's time that is spent in the transform."""


def transform_at(place: Hotspot, transforms: tuple[TransformShare, ...]) -> TransformShare | None:
    """Return the transform that a place belongs to; None if there is none."""
    timed = [
        each
        for each in transforms
        if each.line > 0 and each.share >= _LEAST_AGREEMENT * place.share
    ]
    own = [each for each in timed if Path(each.file) == Path(place.frame.file)]
    return _mostly_inside(place, own) or _mostly_inside(
        place,
        [each for each in timed if each.library and each.share >= _LEAST_INSIDE * place.share],
    )


def _mostly_inside(place: Hotspot, transforms: list[TransformShare]) -> TransformShare | None:
    """Return that of the transforms in which a place is for most of its time; None: in none."""
    inside, found = max(
        ((_wall_ns_inside(place, each), each) for each in transforms),
        key=lambda each: each[0],
        default=(0.0, None),
    )
    total = sum(sample.wall_ns for sample in place.samples)
    return found if inside > 0 and inside >= _LEAST_INSIDE * total else None


def _wall_ns_inside(place: Hotspot, transform: TransformShare) -> float:
    return sum(sample.wall_ns for sample in place.samples if _passes(sample, transform))


def _passes(sample: StackSample, transform: TransformShare) -> bool:
    """Return whether a stack is, or was when it called on, in a transform's function."""
    lines = _lines_of(transform, sample.ran_since_s)
    return any(
        Path(frame.file) == Path(transform.file)
        and (frame.line in lines if lines else _has_its_name(frame, transform))
        for frame in sample.frames
    )


def _lines_of(transform: TransformShare, ran_since_s: float | None) -> range:
    """Return the lines of a transform's function; none where its source cannot be had."""
    tree = parse_source("".join(source_lines_as_run(transform.file, ran_since_s)))
    for begin, end in _functions(tree) if tree is not None else ():
        if begin == transform.line:
            return range(begin, end + 1)
    return range(0)


def _functions(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of each function, its decorators included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            begin = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            yield begin, node.end_lineno or begin
        elif isinstance(node, ast.Lambda):
            yield node.lineno, node.end_lineno or node.lineno


def _has_its_name(frame: StackFrame, transform: TransformShare) -> bool:
    """Return whether a frame is in a function, or a class's method, of a transform's name.

    That of a collate function is not recorded: what begins after it may be it.
    """
    _, has_name, name = transform.name.rpartition(": ")
    if not has_name:
        return frame.line >= transform.line
    return name.rpartition(".")[2] in frame.function.split(".")
