"""The tables of auxiliary hosts: what they made, and what its way took."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headrace.core.units import format_bytes
from headrace.observe.whatif.tables import Columns, chosen, columns, grouped, length
from headrace.report.markup import Child, element, table
from headrace.report.material import Material
from headrace.report.section import Section, explained, note, section
from headrace.report.telling import milliseconds, share

_MOST = 128
_WAYS = (
    "Host", "Rank", "Loader", "Batches", "Not needed", "Asked until here", "Waited there", "Made",
    "On its way", "Received", "Size", "Bytes a second",
)  # fmt: skip
_WORKERS = (
    "Host", "Rank", "Loader", "Worker", "Batches", "Time a batch", "CPU time a batch", "Collate",
    "Idle before", "Read",
)  # fmt: skip
_TRANSFORMS = ("Host", "What", "Time a call", "On a CPU", "Calls timed")


def auxiliary(material: Material) -> Section | None:
    """Return the section on auxiliary hosts; None where none made batches."""
    arrivals = columns(material.tables, "arrivals")
    if length(arrivals) == 0:
        return None
    batches = columns(material.tables, "auxiliary_batches")
    timed = columns(material.tables, "auxiliary_transforms")
    workers = _rows(batches, ("host", "rank", "loader", "worker"), _worker)
    return section(
        "auxiliary",
        "Auxiliary hosts",
        explained(
            "Batches that other hosts made. Times are means of one batch: how long from asking "
            "until it lay ready here; of that, waiting on the host for a worker and its core, with "
            "the worker, and the rest, on its way; receiving is the part of the way in which its "
            "bytes came. A batch is not needed where a worker elsewhere was asked too, and was "
            "done first."
        ),
        table(_WAYS, _rows(arrivals, ("host", "rank", "loader"), _way), numbers=len(_WAYS) - 3),
        element("h3", "Workers there"),
        table(_WORKERS, workers[:_MOST], numbers=len(_WORKERS) - 4),
        note(f"{len(workers) - _MOST} more are left out.") if len(workers) > _MOST else None,
        element("h3", "Transforms there"),
        table(_TRANSFORMS, _rows(timed, ("host", "name"), _transform)[:_MOST], numbers=3),
    )


def _rows(
    rows: Columns, by: Sequence[str], tell: Callable[[Columns], tuple[str, ...]]
) -> list[tuple[Child, ...]]:
    """Return a row of texts for all rows that agree in some columns, ordered by these."""
    told = {}
    for places in grouped(rows, by):
        own = chosen(rows, places)
        told[tuple(own[name][0] for name in by)] = tell(own)
    return [(*map(str, who), *told[who]) for who in sorted(told)]


def _way(own: Columns) -> tuple[str, ...]:
    under_way_ns = own["wall_ns"] - own["queued_ns"] - own["making_ns"]
    seconds = max(float(own["receive_ns"].sum()) / 1e9, 1e-9)
    return (
        f"{length(own):,}",
        f"{int((own['counted'] == 0).sum()):,}",
        *(milliseconds(own[f"{name}_ns"].mean()) for name in ("wall", "queued", "making")),
        milliseconds(under_way_ns.mean()),
        milliseconds(own["receive_ns"].mean()),
        format_bytes(float(own["size_bytes"].mean())),
        f"{format_bytes(float(own['size_bytes'].sum()) / seconds)}/s",
    )


def _worker(own: Columns) -> tuple[str, ...]:
    return (
        f"{length(own):,}",
        *(milliseconds(own[f"{name}_ns"].mean()) for name in ("wall", "cpu", "collate", "idle")),
        format_bytes(float(np.maximum(own["read_bytes"], 0).mean())),
    )


def _transform(own: Columns) -> tuple[str, ...]:
    calls, wall_ns = max(int(own["calls"].sum()), 1), max(float(own["wall_ns"].sum()), 1.0)
    return (
        milliseconds(wall_ns / calls),
        share(min(float(own["cpu_ns"].sum()) / wall_ns, 1.0)),
        f"{calls:,}",
    )
