"""The table of workers."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.core.units import format_bytes
from headrace.observe.whatif.tables import Columns, chosen, columns, length
from headrace.report.markup import Child, table
from headrace.report.material import Material
from headrace.report.section import Section, explained, note, section
from headrace.report.telling import milliseconds, share

_MOST = 128
_HEAD = (
    "Rank", "Loader", "Worker", "Batches", "Time a batch", "CPU time a batch", "Collate",
    "Send", "Idle before", "Busy", "Read",
)  # fmt: skip


def workers(material: Material) -> Section:
    """Return the section with a row for each worker."""
    batches = columns(material.tables, "batches")
    title = "Workers"
    if length(batches) == 0:
        return section(
            "workers", title, note("No batch was seen being made: no data loader is known.")
        )
    who = np.unique(
        np.column_stack((batches["rank"], batches["loader"], batches["worker"])), axis=0
    )
    rows = [_row(batches, *map(int, each)) for each in who[:_MOST]]
    left = len(who) - len(rows)
    return section(
        "workers",
        title,
        explained(
            "Who made the batches. Times are means of one batch. CPU time far below the time a "
            "batch takes means that the worker waited: for files, the network, a lock or a free "
            "core. Collate is putting samples together, send is handing the batch to the rank; "
            "idle is waiting for something to do; read is how many bytes a batch took."
        ),
        table(_HEAD, rows, numbers=len(_HEAD) - 3),
        note(f"{left} more are left out.") if left else None,
    )


def _row(batches: Columns, rank: int, loader: int, worker: int) -> tuple[Child, ...]:
    own = chosen(
        batches,
        (batches["rank"] == rank) & (batches["loader"] == loader) & (batches["worker"] == worker),
    )
    wall = own["wall_ns"]
    there = wall + np.maximum(own["idle_ns"], 0) + np.maximum(own["send_ns"], 0)
    busy = share(float(wall.sum()) / max(float(there.sum()), 1.0)) if worker >= 0 else "-"
    return (
        str(rank),
        str(loader),
        "the rank" if worker < 0 else str(worker),
        f"{length(own):,}",
        milliseconds(wall.mean()),
        milliseconds(_mean(own["cpu_ns"])),
        milliseconds(_mean(own["collate_ns"])),
        milliseconds(_mean(own["send_ns"])) if worker >= 0 else "-",
        milliseconds(_mean(own["idle_ns"])) if worker >= 0 else "-",
        busy,
        format_bytes(_mean(own["read_bytes"])),
    )


def _mean(values: Any) -> float:
    known = values[values >= 0]  # -1 stands for not known
    return float(known.mean()) if len(known) else 0.0
