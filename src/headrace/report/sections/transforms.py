"""The table of transforms."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headrace.observe.whatif.tables import Columns, Flags, added_up, columns, length
from headrace.report.markup import Child, element, table
from headrace.report.material import Material
from headrace.report.section import Section, explained, note, section
from headrace.report.telling import milliseconds, share

_MOST = 60
_HEAD = ("What", "Where", "Time a call", "On a CPU", "Share of the time", "Calls timed")


def transforms(material: Material) -> Section:
    """Return the section with a row for each transform, the most expensive first."""
    rows = columns(material.tables, "transforms")
    title = "Transforms"
    if length(rows) == 0:
        return section("transforms", title, note("No transform of a dataset was timed."))
    rows = added_up(
        rows,
        by=("loader", "name", "file", "line", "one_in"),
        sums=("calls", "wall_ns", "cpu_ns"),
    )
    total = _whole_ns(rows)
    told = []
    for name in dict.fromkeys(map(str, rows["name"])):
        own = np.asarray(rows["name"] == name, dtype=np.bool_)
        told.append((_estimate_ns(rows, own), _row(rows, own, name, total)))
    told.sort(key=lambda each: -each[0])
    one_in = int(rows["one_in"].max())
    return section(
        "transforms",
        title,
        explained(
            f"What is done to each sample, timed for one sample in {one_in}. A row that calls "
            "others, such as __getitem__, holds their time too. Shares are of all the time of "
            "making samples and batches of the same loader."
        ),
        table(_HEAD, [row for _, row in told[:_MOST]], numbers=4),
        note(f"{len(told) - _MOST} more are left out.") if len(told) > _MOST else None,
    )


def _row(rows: Columns, own: Flags, name: str, whole_ns: dict[int, float]) -> tuple[Child, ...]:
    at = int(own.nonzero()[0][0])
    file, line = str(rows["file"][at]), int(rows["line"][at])
    calls, wall = int(rows["calls"][own].sum()), float(rows["wall_ns"][own].sum())
    total = sum(whole_ns.get(int(loader), 0.0) for loader in np.unique(rows["loader"][own]))
    place = f"{Path(file).name}:{line}" if file else ""
    return (
        name,
        element("code", place, title=file) if place else "",
        milliseconds(wall / max(calls, 1)),
        share(min(float(rows["cpu_ns"][own].sum()) / max(wall, 1.0), 1.0)),
        share(min(_estimate_ns(rows, own) / max(total, 1.0), 1.0)),
        f"{calls:,}",
    )


def _estimate_ns(rows: Columns, own: Flags) -> float:
    """Return the time of all calls, from those that were timed."""
    return float((rows["wall_ns"][own] * np.maximum(rows["one_in"][own], 1)).sum())


def _whole_ns(rows: Columns) -> dict[int, float]:
    """Return for each loader the time of making its samples and batches."""
    whole = {}
    for loader in np.unique(rows["loader"]):
        own = rows["loader"] == loader
        names = [str(name) for name in rows["name"]]
        outer = np.array(
            [name.endswith(("__getitem__", "__getitems__", "__iter__", "__next__"))
             or "collate" in name for name in names],
            dtype=np.bool_,
        )  # fmt: skip
        whole[int(loader)] = _estimate_ns(rows, own & outer) or _estimate_ns(rows, own)
    return whole
