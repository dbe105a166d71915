"""Batches that a script fetches all of before it trains on the first, as by `list(loader)`.

What loaders make ahead of training then waits for all of an epoch, and training for it.
"""

from __future__ import annotations

import numpy as np

from headrace.observe.whatif.tables import Columns, Flags, Ints

_USED_SHARE, _USED_NS = 0.05, 500_000
"""Of batches that a script only asks for, at most this share of the time is not data wait, and so
much of a batch's: any model takes longer."""
_FEWEST_STEPS = 2
"""Steps without a batch of their own, where the script trains on those that it keeps."""


def iterations(rows: Columns, fetches: Columns) -> Ints:
    """Return for each row of `steps` the number of iterations that had begun by its end."""
    begins = np.sort(fetches["start_ns"][fetches["batch"] == 0])
    return np.asarray(np.searchsorted(begins, rows["start_ns"] + rows["wall_ns"]))


def is_little_use(used_ns: Ints, wall_ns: int) -> bool:
    """Return whether a script did nothing with batches but ask for the next, in `wall_ns`."""
    return int(used_ns.sum()) <= _USED_SHARE * wall_ns and float(np.median(used_ns)) <= _USED_NS


def kept_batches(rows: Columns, fetches: Columns) -> tuple[Ints, Flags, list[tuple[int, int, int]]]:
    """Return the iterations of one rank and loader whose batches are kept, and where that is.

    In such an iteration no step but the first holds a batch, and the others are several.

    Args:
        rows: Of `steps`, of the rank and the loader, in order.
        fetches: The same's batches.

    Returns:
        The numbers of `iterations`; which rows they fetch batches in without training; of their
        first steps the parts that do: start, wall time in ns, batches.
    """
    number = iterations(rows, fetches)
    trains, kept = rows["kind"] == "train", np.zeros(rows.count, dtype=np.bool_)
    fetches = fetches.where(np.argsort(fetches["start_ns"], kind="stable"))
    found, parts = [], []
    for each in np.unique(number[trains]):
        mine = number == each
        steps = np.flatnonzero(trains & mine)
        if len(steps) <= _FEWEST_STEPS or rows["batches"][steps[1:]].any():
            continue
        before = mine & (rows["kind"] == "eval")
        before[steps[0] :] = False
        part = _fetched_within(rows, int(steps[0]), fetches)
        if before.any():
            used_ns = (rows["wall_ns"] - rows["data_wait_ns"])[before]
            if not is_little_use(used_ns, int(rows["wall_ns"][before].sum())):
                continue
        elif part is None:
            continue
        found.append(int(each))
        kept |= before
        parts += [part] if part is not None else []
    return np.array(found, dtype=np.int64), kept, parts


def _fetched_within(rows: Columns, step: int, fetches: Columns) -> tuple[int, int, int] | None:
    """Return the part of a step that fetches several batches in a row: start, wall ns, batches."""
    begin_ns, count = int(rows["start_ns"][step]), int(rows["batches"][step])
    first = int(np.searchsorted(fetches["start_ns"], begin_ns))
    asked_ns = fetches["start_ns"][first : first + count]
    if count < 2 or len(asked_ns) < count:
        return None
    had_ns = asked_ns + fetches["wait_ns"][first : first + count]
    wall_ns = min(int(had_ns[-1]) - begin_ns, int(rows["wall_ns"][step]))
    if not is_little_use(asked_ns[1:] - had_ns[:-1], wall_ns):
        return None
    return begin_ns, wall_ns, count
