"""Loaders whose batches reach the training thread in a way that the probe does not follow.

Such as a subclass of DataLoader with an iterator of its own, or a thread that takes batches from
the loader and hands them on by a queue: what the training thread waits for is then not known.
"""

from __future__ import annotations

from pathlib import Path

from headrace.observe.whatif.tables import Columns

_FEWEST_BATCHES = 5
_FOLLOWED = 0.5
"""A loader is followed if the training thread was seen to take this share of its batches."""


def unfollowed_loader(loaders: Columns, batches: Columns, fetches: Columns) -> str | None:
    """Return the place of the loader that seems to feed training unseen; None if there is none.

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
    return f"{Path(file).name}:{line}" if file else "an unknown place"
