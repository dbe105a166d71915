"""Samples of a rank within an optimizer's closure, as of Lightning or LBFGS: of phase forward.

`optimizer.step(closure)` calls what computes the loss. Steps count that time as forward (the step
clock knows when backward begins), but a stack is sampled before, while the optimizer's step is on.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import replace

from headrace.observe.doctor.stack_samples import StackSample

_OPTIMIZER_STEP = re.compile(r"^torch/optim/(?!optimizer\.py$)")
"""Code of an optimizer that calls a closure; the base class also calls hooks, which are no part."""
_TORCH = re.compile(r"^torch/")


def with_closures_as_forward(samples: Iterable[StackSample]) -> tuple[StackSample, ...]:
    """Return samples with those of phase optimizer that are in its closure as of phase forward."""
    return tuple(
        replace(sample, phase="forward") if _is_in_closure(sample) else sample for sample in samples
    )


def _is_in_closure(sample: StackSample) -> bool:
    if sample.phase != "optimizer":
        return False
    frames = sample.frames
    return any(
        _OPTIMIZER_STEP.match(caller.module_file) and not _TORCH.match(called.module_file)
        for caller, called in itertools.pairwise(frames)
    )
