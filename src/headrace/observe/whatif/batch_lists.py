"""Batches that a script fetches before it trains on the first of them, as by `list(loader)`.

All of an epoch, or many at a time. While the model trains on them, none is asked for.
"""

from __future__ import annotations

import numpy as np

from headrace.observe.whatif.tables import Columns, Flags, Ints

_USED_SHARE, USED_NS = 0.05, 500_000
"""Of batches that a script only asks for, at most this share of the time is not data wait, and so
much of a batch's: any model takes longer."""
_FEWEST_STEPS = 2
"""Steps without a batch of their own, where the script trains on those that it keeps."""
_FEWEST_AT_A_TIME = 10
"""Fewer, of an iteration that goes on, may be the parts of a step, such as tasks."""


def iterations(rows: Columns, fetches: Columns) -> Ints:
    """Return for each row of `steps` the number of iterations that had begun by its end."""
    begins = np.sort(fetches["start_ns"][fetches["batch"] == 0])
    return np.asarray(np.searchsorted(begins, rows["start_ns"] + rows["wall_ns"]))


def is_little_use(used_ns: Ints, wall_ns: int) -> bool:
    """Return whether a script did nothing with batches but ask for the next, in `wall_ns`."""
    return int(used_ns.sum()) <= _USED_SHARE * wall_ns and float(np.median(used_ns)) <= USED_NS


def find_batch_lists(
    rows: Columns, fetches: Columns
) -> tuple[Flags, Flags, list[tuple[int, int, int]]]:
    """Return where one rank keeps the batches of a loader: which rows, and parts of steps.

    Several steps without a batch follow there.

    Args:
        rows: Of `steps`, of the rank and the loader, in order.
        fetches: The same's batches.

    Returns:
        Which rows are steps on kept batches, or fetch these; which only fetch; of the others the
        parts that do: start, wall time in ns, batches.
    """
    number, trains = iterations(rows, fetches), rows["kind"] == "train"
    inside, alone = np.zeros((2, rows.count), dtype=np.bool_)
    fetches = fetches.where(np.argsort(fetches["start_ns"], kind="stable"))
    parts: list[tuple[int, int, int]] = []
    for each in np.unique(number[trains]):
        mine = number == each
        steps = np.flatnonzero(trains & mine)
        begins = np.union1d([0], np.flatnonzero(rows["batches"][steps]))
        for begin, end in zip(begins, [*begins[1:], len(steps)], strict=True):
            if end - begin <= _FEWEST_STEPS:
                continue
            before = mine & (rows["kind"] == "eval")
            before[steps[begin] :] = False
            before &= begin == 0
            part = _fetched_within(rows, int(steps[begin]), fetches)
            count = int(rows["batches"][before].sum()) + (0 if part is None else part[2])
            is_whole = len(begins) == 1
            if not (is_whole or count >= _FEWEST_AT_A_TIME):
                continue
            if not count or _uses(rows.where(before)):
                continue
            alone |= before
            inside |= before
            inside[steps[begin:end]] = True
            parts += [part] if part is not None else []
    return inside, alone, parts


def _uses(rows: Columns) -> bool:
    """Return whether a script does more with batches in rows of their own than to ask for them."""
    used_ns = rows["wall_ns"] - rows["data_wait_ns"]
    return rows.count > 0 and not is_little_use(used_ns, int(rows["wall_ns"].sum()))


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
