"""Which row of `device_steps` belongs to which row of `steps`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KIND_BITS, _STEP_BITS = 2, 40
_KINDS = ("train", "eval", "between")


def device_places(
    steps: Mapping[str, NDArray[Any]], device_steps: Mapping[str, NDArray[Any]]
) -> NDArray[np.int64]:
    """Return for each of some steps the place of its row by the device's clock; -1: it has none.

    A row of `device_steps` may be lost. Where a rank was started again within an attempt, it
    numbers its steps anew: what cannot be told apart counts as lost.

    Args:
        steps: The columns `rank`, `kind` and `step` of rows of `steps`.
        device_steps: Likewise of `device_steps`.
    """
    wanted, there = _keys(steps), _keys(device_steps)
    order = np.argsort(there, kind="stable")
    there = there[order]
    first = np.searchsorted(there, wanted, "left")
    count = np.searchsorted(there, wanted, "right") - first
    _, numbers, times = np.unique(wanted, return_inverse=True, return_counts=True)
    sure = (count == 1) & (times[numbers] == 1)
    places = np.full(len(wanted), -1, dtype=np.int64)
    places[sure] = order[first[sure]]
    return places


def _keys(rows: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Return a number for rank, kind and step together."""
    kind = np.zeros(len(rows["rank"]), dtype=np.int64)
    for number, name in enumerate(_KINDS):
        kind[np.asarray(rows["kind"] == name)] = number
    rank = np.asarray(rows["rank"], dtype=np.int64)
    step = np.asarray(rows["step"], dtype=np.int64)
    return (((rank << _KIND_BITS) + kind) << _STEP_BITS) + step
