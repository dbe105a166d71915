"""Loaders whose batches reach the training thread in a way that the probe does not follow.

Such as a subclass of DataLoader with an iterator of its own, a thread that takes batches from the
loader and hands them on by a queue, or a library's loader that is no DataLoader of torch's: what
the training thread waits for is then not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.observe.doctor.stack_samples import StackSample
from headrace.observe.whatif.tables import Columns

_FEWEST_BATCHES = 5
_FOLLOWED = 0.5
"""A loader is followed if the training thread was seen to take this share of its batches."""
_LIBRARIES = {
    "torchdata/nodes/": "torchdata.nodes",
    "fastai/data/": "fastai",
    "nvidia/dali/": "NVIDIA DALI",
    "ffcv/": "ffcv",
}
"""Those with loaders that are none of torch's, by where their code lies."""
_LEAST_INSIDE = 0.1
"""Of the training thread's time that is spent in such code, where it feeds training."""


def library_with_loader(samples: Sequence[StackSample]) -> str | None:
    """Return "of LIBRARY", in whose own loader the training thread spends most time; or None."""
    inside = dict.fromkeys(_LIBRARIES.values(), 0.0)
    for sample in samples:
        found = {
            name
            for frame in sample.frames
            for folder, name in _LIBRARIES.items()
            if frame.module_file.startswith(folder)
        }
        for name in found:
            inside[name] += sample.wall_ns
    name = max(inside, key=lambda each: inside[each])
    total = sum(sample.wall_ns for sample in samples)
    return f"of {name}" if inside[name] > 0 and inside[name] >= _LEAST_INSIDE * total else None


def unfollowed_loader(loaders: Columns, batches: Columns, fetches: Columns) -> str | None:
    """Return "at PLACE" of the loader that seems to feed training unseen; None if there is none.

    To be called where no loader was seen to feed training. It is the one that made most batches
    which nobody was seen to take; or the last one, where none of them was seen at work at all.
    """
    by_number = {int(number): place for place, number in enumerate(loaders["loader"].tolist())}
    unseen: dict[int, int] = {}
    for number in by_number:
        made, taken = batches.having(loader=number).count, fetches.having(loader=number).count
        if made >= _FEWEST_BATCHES and taken < _FOLLOWED * made:
            unseen[number] = made
    if not unseen and not batches.count and not fetches.count and by_number:
        unseen = {max(by_number): 0}
    if not unseen:
        return None
    place = by_number[max(unseen, key=lambda number: unseen[number])]
    file, line = str(loaders["file"][place]), int(loaders["line"][place])
    return f"at {Path(file).name}:{line}" if file else "at an unknown place"
