"""Workers on auxiliary hosts: how many made a loader's batches, how fast, and from when to when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.observe.whatif.tables import Columns, Tables, columns

LOADER_EVENT, CORES_EVENT = "auxiliary-loader", "auxiliary-cores"
"""Kinds of event: a loader, by its number, whose batches auxiliary hosts may make; and the cores
that it may use on a host, whose name follows the loader's number (`cores_text`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadStats:
    """Workers on auxiliary hosts."""

    workers: int = 0  # mean number for each rank
    making_ns: float = 0.0  # mean time to make a batch; 0 if none were made
    hosts: int = 0  # number of hosts


def read_offload_stats(
    tables: Tables, loader: int, span_ns: tuple[int, int] | None
) -> OffloadStats | None:
    """Return the work of auxiliary hosts for a loader; None if its batches are not offloaded."""
    arrivals, events = columns(tables, "arrivals"), columns(tables, "events")
    if span_ns is None or not events.having(kind=LOADER_EVENT, value=loader).count:
        return None
    began_ns = arrivals["start_ns"]
    mine = arrivals.where((began_ns >= span_ns[0]) & (began_ns <= span_ns[1])).having(loader=loader)
    if mine.count == 0:
        return OffloadStats()
    cores = _mean_cores(_core_events_of(events, loader), span_ns) / len(np.unique(mine["rank"]))
    return OffloadStats(
        workers=max(round(cores), 1),
        making_ns=float(mine["making_ns"].mean()),
        hosts=len(np.unique(mine["host"].astype(str))),
    )


def cores_text(loader: int, host: str) -> str:
    """Return the text of an event about a host's cores."""
    return f"{loader}/{host}"


def _core_events_of(events: Columns, loader: int) -> Columns:
    """Return the events about the cores that a loader may use."""
    cores = events.having(kind=CORES_EVENT)
    begin = cores_text(loader, "")
    mine = [str(text).startswith(begin) for text in cores["text"]]
    return cores.where(np.array(mine, dtype=np.bool_))


def _mean_cores(core_events: Columns, span_ns: tuple[int, int]) -> float:
    """Return the mean number of cores that all ranks together could use."""
    begin_ns, end_ns = span_ns
    total = 0.0
    core_events = core_events.where(np.argsort(core_events["at_ns"], kind="stable"))
    for places in core_events.group("rank", "text"):
        at_ns = np.clip(core_events["at_ns"][places], begin_ns, end_ns)
        total += float((core_events["value"][places] * np.diff(at_ns, append=end_ns)).sum())
    return total / max(end_ns - begin_ns, 1)


def offload_span_ns(events: Columns, loader: int) -> tuple[int, int] | None:
    """Return when the first and last host began to make a loader's batches; None if none did."""
    cores = _core_events_of(events, loader)
    cores = cores.where(cores["value"] > 0)
    if cores.count == 0:
        return None
    firsts = [cores["at_ns"][places].min() for places in cores.group("rank", "text")]
    return int(min(firsts)), int(max(firsts))
