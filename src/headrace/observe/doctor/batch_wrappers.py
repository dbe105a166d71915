"""Functions of the script that hand a loader's batches on: generators and iterators around it.

Such as the `__iter__` of a subclass, or `for batch in augmented(loader)`. What they do with a batch
that has come is no part of the model, though it comes before backward.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace.observe.doctor.stack_frames import StackFrame, making_begin
from headrace.observe.doctor.stack_samples import CUT_OFF_FRAMES, StackSample, calls_module

Function = tuple[str, str]
"""A function's file and its name."""
_TRAINS = frozenset({"backward", "optimizer"})
_LEAST_WITHOUT = 0.02
"""A loop's own function is in all samples of its steps, one that hands batches on is not."""


def batch_wrappers(samples: Collection[StackSample]) -> frozenset[Function]:
    """Return the functions that ask for batches and hand them on, by samples of a rank's steps.

    They are seen to wait for batches, never to train or to call a module, and are left meanwhile.
    """
    asking, trains = set[Function](), set[Function]()
    others = []
    for sample in samples:
        if sample.phase == "data_wait":
            asking |= _functions(sample.frames[: making_begin(sample.frames) or 0])
        elif len(sample.frames) < CUT_OFF_FRAMES:
            others.append((sample.wall_ns, functions := _functions(sample.frames)))
            if sample.phase in _TRAINS or calls_module(sample):
                trains |= functions
    total_ns = sum(wall_ns for wall_ns, _ in others)
    return frozenset(
        function
        for function in asking - trains
        if sum(wall_ns for wall_ns, inside in others if function not in inside)
        >= _LEAST_WITHOUT * total_ns
        > 0
    )


def is_in(sample: StackSample, functions: frozenset[Function]) -> bool:
    """Return whether a sample is in one of some functions."""
    return bool(functions) and not functions.isdisjoint(_functions(sample.frames))


def _functions(frames: Collection[StackFrame]) -> set[Function]:
    return {(frame.file, frame.function) for frame in frames if frame.is_user}
