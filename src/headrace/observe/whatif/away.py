"""What workers on auxiliary hosts did, beside those of the ranks' own host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.observe.whatif.tables import (
    Columns,
    Floats,
    Ints,
    Tables,
    chosen,
    columns,
    grouped,
    length,
)

LOADER_EVENT, CORES_EVENT = "auxiliary-loader", "auxiliary-cores"
"""Kinds of event: a loader, by its number, whose batches auxiliary hosts may make; and how many
cores it may count on, of a host whose name follows the loader's number (`cores_text`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """Workers on auxiliary hosts.

    Attributes:
        workers: How many worked for each rank, on average.
        making_ns: What they took to make a batch, on average; 0 where they made none.
        hosts: How many hosts they were on.
    """

    workers: int = 0
    making_ns: float = 0.0
    hosts: int = 0


def read_away(tables: Tables, loader: int, span_ns: tuple[int, int] | None) -> Away | None:
    """Return what auxiliary hosts did for a loader; None where they were not to do anything.

    Args:
        tables: Where the records are.
        loader: The loader's number.
        span_ns: From when to when.
    """
    arrivals, events = columns(tables, "arrivals"), columns(tables, "events")
    if span_ns is None or not _is_offloaded(events, loader):
        return None
    if length(arrivals) == 0:
        return Away()
    within = (arrivals["loader"] == loader) & (arrivals["start_ns"] >= span_ns[0])
    within &= arrivals["start_ns"] <= span_ns[1]
    mine = chosen(arrivals, within)
    if length(mine) == 0:
        return Away()
    cores = _mean_cores(_of_loader(events, loader), span_ns) / len(np.unique(mine["rank"]))
    return Away(
        workers=max(round(cores), 1),
        making_ns=float(mine["making_ns"].mean()),
        hosts=len(np.unique(mine["host"].astype(str))),
    )


def _is_offloaded(events: Columns, loader: int) -> bool:
    told = (events["kind"] == LOADER_EVENT) & (events["value"] == loader)
    return bool(told.any())


def cores_text(loader: int, host: str) -> str:
    """Return the text of an event about a host's cores."""
    return f"{loader}/{host}"


def _of_loader(events: Columns, loader: int) -> Columns:
    """Return the events about the cores that a loader may count on."""
    told = chosen(events, events["kind"] == CORES_EVENT)
    begin = cores_text(loader, "")
    mine = [str(text).startswith(begin) for text in told["text"]]
    return chosen(told, np.array(mine, dtype=np.bool_))


def _mean_cores(told: Columns, span_ns: tuple[int, int]) -> float:
    """Return the cores that all ranks together could count on, on average."""
    begin_ns, end_ns = span_ns
    total = 0.0
    for rank in np.unique(told["rank"]):
        for host in np.unique(told["text"][told["rank"] == rank].astype(str)):
            mine = chosen(told, (told["rank"] == rank) & (told["text"] == host))
            order: Ints = np.argsort(mine["at_ns"], kind="stable")
            at_ns = np.clip(mine["at_ns"][order], begin_ns, end_ns)
            lasted: Floats = np.diff(at_ns, append=end_ns).astype(np.float64)
            total += float((mine["value"][order] * lasted).sum())
    return total / max(end_ns - begin_ns, 1)


def joined_ns(events: Columns, loader: int) -> tuple[int, int] | None:
    """Return when the first host began to make a loader's batches, and the last; None: none did."""
    told = _of_loader(events, loader)
    told = chosen(told, told["value"] > 0)
    if length(told) == 0:
        return None
    firsts = [told["at_ns"][places].min() for places in grouped(told, ("rank", "text"))]
    return int(min(firsts)), int(max(firsts))
