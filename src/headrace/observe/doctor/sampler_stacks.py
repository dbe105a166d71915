"""The parts of a rank's stack samples in which its loader asks the sampler what comes next."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

from headrace.observe.doctor.stack_frames import StackFrame
from headrace.observe.doctor.stack_samples import StackSample

_ASKS_SAMPLER = re.compile(
    r"^torch/utils/data/dataloader\.py:_BaseDataLoaderIter\.(_next_index|_reset|__init__)$"
    r"|^torchdata/stateful_dataloader/stateful_dataloader\.py:\w+\._next_index$"
    r"|^headrace/data/loader/iteration\.py:\w+BatchSpecs\.__iter__$"
)
"""Frames of loaders, as module file:function, whose callee is the sampler."""
_METHOD = re.compile(r"\.__(iter|next)__$")
_SHUFFLES_ALL = re.compile(
    r"^torch/utils/data/(sampler|distributed)\.py:(Random|Distributed)Sampler"
)


def within_sampler(sample: StackSample) -> StackSample | None:
    """Return a sample's frames from the sampler on; None if the rank is elsewhere."""
    for place, (caller, called) in enumerate(pairwise(sample.frames), start=1):
        if _matches(_ASKS_SAMPLER, caller) and not _matches(_ASKS_SAMPLER, called):
            return replace(sample, frames=sample.frames[place:])
    return None


def cut_to_sampler(inner: tuple[StackSample, ...]) -> tuple[StackSample, ...]:
    """Return samples without what the user's sampler calls: functions that are not of its class."""
    return tuple(_cut_to_class(sample) for sample in inner)


def _cut_to_class(sample: StackSample) -> StackSample:
    methods = [each for each in sample.frames if each.is_user and _METHOD.search(each.function)]
    if not methods:
        return sample
    begin = _METHOD.sub(".", methods[-1].function)
    own = [
        place
        for place, frame in enumerate(sample.frames, start=1)
        if frame.is_user and frame.function.startswith(begin)
    ]
    if not any(frame.is_user for frame in sample.frames[own[-1] :]):
        return sample
    return replace(sample, frames=sample.frames[: own[-1]])


def sampler_name(inner: tuple[StackSample, ...]) -> str:
    """Return the sampler, of a library, that takes most of the time: its class, if it has one."""
    spent: dict[str, float] = {}
    for sample in inner:
        methods = [each.function for each in sample.frames if _METHOD.search(each.function)]
        name = _METHOD.sub("", methods[-1]) if methods else sample.frames[-1].function
        spent[name] = spent.get(name, 0.0) + sample.wall_ns
    return max(spent, key=lambda name: spent[name], default="")


def lists_all_indices(inner: tuple[StackSample, ...]) -> bool:
    """Return whether most of the time is spent in torch's list of all indices, shuffled."""
    listed_ns = sum(
        sample.wall_ns
        for sample in inner
        if any(_matches(_SHUFFLES_ALL, frame) for frame in sample.frames)
        and not any(frame.is_user for frame in sample.frames)
    )
    return listed_ns > 0.5 * sum(sample.wall_ns for sample in inner)


def _matches(pattern: re.Pattern[str], frame: StackFrame) -> bool:
    return pattern.search(f"{frame.module_file}:{frame.function}") is not None
