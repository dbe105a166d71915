"""The transforms of a loader, ranked by their share of the time of making batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.observe.doctor.findings import Cause
from headrace.observe.doctor.stack_samples import Hotspot
from headrace.observe.whatif.tables import Columns, row_count, select_rows, sum_rows

_SAMPLE_CALLS = ("__getitem__", "__getitems__", "__iter__", "__next__")
"""Calls that contain the others, so that their share has no meaning of its own."""
_LEAST_AGREEMENT = 0.4
"""A transform is named for a place if it takes at least this share of the place's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformShare:
    """A transform and its share of the time of making batches."""

    name: str
    file: str  # empty if unknown
    line: int  # its first
    share: float
    cpu_share: float  # CPU time over wall time in it

    def cause(self) -> Cause:
        """Return the transform as the cause of a finding."""
        return Cause(file=self.file, line=self.line, transform=self.name, share=self.share)


def transform_shares(transforms: Columns, loader: int) -> tuple[TransformShare, ...]:
    """Return a loader's transforms, the most expensive first, without those that contain others.

    Shares are of `__getitem__` if that was timed, too, and otherwise of all that was timed.
    """
    if row_count(transforms) == 0:
        return ()
    rows = sum_rows(
        select_rows(transforms, transforms["loader"] == loader),
        by=("name", "file", "line", "one_in"),
        sums=("wall_ns", "cpu_ns"),
    )
    names = rows["name"]
    wall = rows["wall_ns"] * np.maximum(rows["one_in"], 1).astype(np.float64)
    contains_all = np.array([str(name).endswith(_SAMPLE_CALLS) for name in names], dtype=np.bool_)
    collates = np.array(["collate" in str(name) for name in names], dtype=np.bool_)
    total = float(wall[contains_all].sum() + wall[collates].sum())
    leaves = ~contains_all & ~_container_mask(names)
    if total <= 0 or not contains_all.any():
        total = float(wall[leaves].sum())
    shares = []
    for name in dict.fromkeys(str(name) for name in names[leaves]):
        same = names == name
        at = int(same.nonzero()[0][0])
        shares.append(
            TransformShare(
                name=name,
                file=str(rows["file"][at]),
                line=int(rows["line"][at]),
                share=min(float(wall[same].sum()) / max(total, 1.0), 1.0),
                cpu_share=float(rows["cpu_ns"][same].sum() / max(rows["wall_ns"][same].sum(), 1)),
            )
        )
    return tuple(sorted(shares, key=lambda transform: -transform.share))


def transform_at(place: Hotspot, transforms: tuple[TransformShare, ...]) -> TransformShare | None:
    """Return the transform that a place belongs to; None if there is none."""
    before = [
        transform
        for transform in transforms
        if transform.line > 0
        and Path(transform.file) == Path(place.frame.file)
        and transform.line <= place.frame.line
    ]
    nearest = max(before, key=lambda transform: transform.line, default=None)
    if nearest is None or nearest.share < _LEAST_AGREEMENT * place.share:
        return None
    return nearest


def _container_mask(names: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which names are containers, whose path another name's path continues.

    A name is a path and what is found there: `Faces.transform.transforms[1]: RandomBlur`.
    """
    paths = [_path(str(name)) for name in names]
    known = set(paths)
    return np.array(
        [any(other.startswith((f"{path}.", f"{path}[")) for other in known) for path in paths],
        dtype=np.bool_,
    )


def _path(name: str) -> str:
    return name.split(": ", maxsplit=1)[0]
