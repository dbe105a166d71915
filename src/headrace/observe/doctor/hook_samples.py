"""Samples of a rank within hooks: a script's or library's functions that torch calls on the way.

Such as histograms of gradients in backward, or statistics of activations in forward. They run in
the phase of the model, and below frames of torch's, but are none of the model.
"""

from __future__ import annotations

import re
from dataclasses import replace

from headrace.observe.doctor.stack_samples import StackSample, source_lines_as_run

_ENGINE = re.compile(r"^torch/autograd/graph\.py:_engine_run_backward$")
_HOOK_WRAPPER = re.compile(r"^torch/utils/hooks\.py:")
"""Torch's own function between the engine and a module's backward hook."""
_MODULE_CALL = re.compile(r"^torch/nn/modules/module\.py:")
_HOOK_SOURCE = re.compile(r"\bhook\(")
"""The lines of torch's `Module._call_impl` that call a hook, where others call forward."""
_TRAINS = re.compile(r"^(torch|deepspeed|apex|horovod|bagua|byteps|colossalai|megatron|fairscale)/")
"""Libraries that sync gradients or step optimizers in hooks: that is part of training."""


def hook_part(sample: StackSample) -> StackSample | None:
    """Return a sample of forward or backward from the hook on that it is in; None if in none.

    What a hook does by torch's own functions, such as an optimizer's step or a collective, counts
    as the model's. So does a custom function's backward, which the engine calls through a frame of
    torch's.
    """
    if sample.phase not in {"forward", "backward"}:
        return None
    at = _hook_begin(sample)
    if at is None or any(_TRAINS.match(frame.module_file) for frame in sample.frames[at:]):
        return None
    return replace(sample, frames=sample.frames[at:])


def _hook_begin(sample: StackSample) -> int | None:
    """Return the place of the innermost hook's first frame that is not torch's."""
    frames = sample.frames
    for at in range(len(frames) - 1, 0, -1):
        caller = frames[at - 1]
        name = f"{caller.module_file}:{caller.function}"
        if _ENGINE.match(name) or _HOOK_WRAPPER.match(name):
            return at
        if _MODULE_CALL.match(name):
            lines = source_lines_as_run(caller.file, None)
            source = lines[caller.line - 1] if 0 < caller.line <= len(lines) else ""
            return at if _HOOK_SOURCE.search(source) else None
    return None
