"""Many values into few columns, so that a short stall is still seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from headrace.observe.whatif.tables import Floats, Ints

How = Literal["mean", "min", "max"]
"""Waits are pooled by max and what should be busy by min: the worst moment of a column shows."""


def group_starts(count: int, most: int) -> Ints:
    """Return where groups of neighbours begin, so that there are at most `most` of them.

    Args:
        count: How many values there are.
        most: How many groups there may be, at least 1.

    Returns:
        The first place of each group; the groups differ by one value at most.
    """
    groups = min(count, most)
    return np.arange(groups, dtype=np.int64) * count // max(groups, 1)


def pool_groups(values: Floats, starts: Ints, how: How) -> Floats:
    """Return one value for each group of neighbours.

    Args:
        values: All values, in their order.
        starts: Where the groups begin: see `group_starts`.
        how: Which value stands for the group.
    """
    if len(starts) == 0:
        return np.zeros(0)
    if how == "mean":
        counts = np.diff(np.append(starts, len(values)))
        return np.asarray(np.add.reduceat(values, starts) / counts)
    reduce: Callable[..., Floats] = (np.minimum if how == "min" else np.maximum).reduceat
    return np.asarray(reduce(values, starts))


def pool_intervals(start: Floats, end: Floats, values: Floats, edges: Floats, how: How) -> Floats:
    """Return one value for each column of time, from values that hold over intervals.

    Args:
        start: When each interval begins.
        end: When it ends.
        values: What holds meanwhile; NaN where not known.
        edges: The columns' edges, ascending: one more than there are columns.
        how: mean weighs by time; min and max take the worst value that holds at any moment of
            the column, however short.

    Returns:
        The columns' values; NaN where no interval reaches into the column.
    """
    columns = len(edges) - 1
    inside = (end > edges[0]) & (start < edges[-1]) & (end > start) & np.isfinite(values)
    start, end, values = start[inside], end[inside], values[inside]
    first = np.clip(np.searchsorted(edges, start, side="right") - 1, 0, columns - 1)
    last = np.clip(np.searchsorted(edges, end, side="left") - 1, first, columns - 1)
    spans = last - first + 1
    offsets = np.arange(spans.sum()) - np.repeat(np.cumsum(spans) - spans, spans)
    column = np.repeat(first, spans) + offsets
    value = np.repeat(values, spans)
    if how == "mean":
        overlap = np.minimum(np.repeat(end, spans), edges[column + 1]) - np.maximum(
            np.repeat(start, spans), edges[column]
        )
        weight = np.bincount(column, overlap, columns)
        total = np.bincount(column, overlap * value, columns)
        return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), np.nan)
    pooled = np.full(columns, np.inf if how == "min" else -np.inf)
    (np.minimum if how == "min" else np.maximum).at(pooled, column, value)
    return np.where(np.isfinite(pooled), pooled, np.nan)


def busy_shares(start: Floats, end: Floats, edges: Floats) -> Floats:
    """Return which share of each column of time is covered by intervals, 0 to 1.

    Args:
        start: When each interval begins.
        end: When it ends.
        edges: The columns' edges, ascending.

    Returns:
        The shares; NaN before the first interval and after the last.
    """
    columns = len(edges) - 1
    if len(start) == 0:
        return np.full(columns, np.nan)
    order = np.argsort(start)
    start, end = start[order], np.maximum.accumulate(end[order])
    start = np.maximum(start, np.append(-np.inf, end[:-1]))  # what overlaps counts once
    end = np.maximum(start, end)
    done = np.append(0.0, np.cumsum(end - start))
    times = np.column_stack((start, end)).ravel()
    covered = np.column_stack((done[:-1], done[1:])).ravel()
    shares = np.diff(np.interp(edges, times, covered)) / np.diff(edges)
    alive = (edges[1:] > start[0]) & (edges[:-1] < end[-1])
    return np.where(alive, np.clip(shares, 0.0, 1.0), np.nan)
