"""Usage of a run's hosts: the job's share of the cores, and the work of auxiliary hosts.

A container sees the whole machine: with a CPU quota every core is listed, busy with whatever runs
there. So the job's use is measured by its own processes, and the use of others counts by what they
leave of its cores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from headrace.observe.whatif.tables import (
    Columns,
    Flags,
    Floats,
    Ints,
    Tables,
    columns,
    group_rows,
    row_count,
    select_rows,
)

_CORE = re.compile(r"core_\d+_percent")
_ACCELERATOR = re.compile(r"gpu_(\d+)_\w+")
_FEWEST_LOOKS = 3
"""With fewer samples of the processes an average says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUsage:
    """A host of the run: the one with the fewest cores, if there are several."""

    cores: float  # that the job may use
    ranks: int
    busy_cores: float | None  # mean while steps ran; None if not recorded
    rank_cores: float | None = None  # used by its ranks without their workers; None if not recorded
    foreign_cores: float = 0.0  # busy with other programs; 0 if unknown
    accelerators: int = 0  # recorded; 0 if there are none, or none was sampled

    @property
    def idle_cores(self) -> float | None:
        """Mean number of idle cores; None if not recorded."""
        return None if self.busy_cores is None else max(self.cores - self.busy_cores, 0.0)

    @property
    def busy_share(self) -> float | None:
        """The share of the cores that was busy, 0 to 1; None if not recorded."""
        return None if self.busy_cores is None else min(self.busy_cores / self.cores, 1.0)


def read_host_usage(tables: Tables, span_ns: tuple[int, int] | None = None) -> HostUsage:
    """Return the host's cores and how busy they were, in all of the run by default."""
    hosts, processes = columns(tables, "hosts"), columns(tables, "processes")
    known = hosts["cores"] if row_count(hosts) else np.array([float("inf")])
    ranks = 1
    if row_count(processes):
        ranks = len(np.unique(processes["rank"][processes["role"] == "rank"]))
    distinct = len(np.unique(hosts["host"])) if row_count(hosts) else 1
    system = columns(tables, "system")
    busy = _busy_cores(system, span_ns)
    usage = columns(tables, "process_usage")
    run = _used_cores(usage, processes, span_ns)  # with processes that ranks started
    host = HostUsage(
        cores=float(known.min()),
        ranks=max(-(-max(ranks, 1) // distinct), 1),
        busy_cores=busy,
        rank_cores=_used_cores(usage, processes, span_ns, "rank"),
        foreign_cores=max(busy - run, 0.0) if busy is not None and run is not None else 0.0,
        accelerators=len({found[1] for name in system if (found := _ACCELERATOR.fullmatch(name))}),
    )
    return _within_quota(host, listed=sum(_CORE.fullmatch(name) is not None for name in system))


def _within_quota(host: HostUsage, *, listed: int) -> HostUsage:
    """Return a host with its busy cores as the job notices them; it may run on the `listed` cores.

    If a CPU quota gives the job fewer cores than it may run on, other programs take some of its
    share only once they leave less than the quota. If the job's own use was not recorded, its share
    is unknown.
    """
    if host.busy_cores is None or listed <= np.ceil(host.cores):
        return host
    if host.rank_cores is None:
        return replace(host, busy_cores=None, foreign_cores=0.0)
    own = host.busy_cores - host.foreign_cores
    taken = max(host.cores - (listed - host.foreign_cores), 0.0)
    return replace(host, busy_cores=min(own + taken, host.cores), foreign_cores=taken)


def _busy_cores(system: Columns, span_ns: tuple[int, int] | None) -> float | None:
    names = [name for name in system if _CORE.fullmatch(name)]
    inside = _inside(system, span_ns)
    if not names or not inside.any():
        return None
    percent = sum(float(np.nanmean(system[name][inside].astype(np.float64))) for name in names)
    return percent / 100.0


def _inside(samples: Columns, span_ns: tuple[int, int] | None) -> Flags:
    """Return which samples lie between two times."""
    if span_ns is None or row_count(samples) == 0:
        return np.ones(row_count(samples), dtype=np.bool_)
    inside: Flags = (samples["t_ns"] >= span_ns[0]) & (samples["t_ns"] <= span_ns[1])
    return inside


def _used_cores(
    usage: Columns, processes: Columns, span_ns: tuple[int, int] | None, role: str = ""
) -> float | None:
    """Return the mean number of cores used by the processes of a role, or by all."""
    if row_count(usage) == 0 or row_count(processes) == 0:
        return None
    wanted = set((processes["pid"][processes["role"] == role] if role else usage["pid"]).tolist())
    samples = select_rows(usage, _inside(usage, span_ns))
    # Each process is sampled at its own times, so the intervals are taken for each.
    by_process = [select_rows(samples, places) for places in group_rows(samples, ("pid",))]
    if max(map(row_count, by_process), default=0) < _FEWEST_LOOKS:
        return None
    usual_ns = float(np.median(np.concatenate([np.diff(mine["t_ns"]) for mine in by_process])))
    used_ns, watched_ns = 0.0, 1.0
    for mine in by_process:
        if int(mine["pid"][0]) in wanted:
            # Includes the time before its first sample: workers restarted each epoch have few.
            since_ns = np.diff(mine["t_ns"], prepend=mine["t_ns"][0] - int(usual_ns))
            watched_ns = max(watched_ns, float(since_ns.sum()))
            used_ns += float((mine["cpu_percent"].astype(np.float64) / 100.0 * since_ns).sum())
    return used_ns / watched_ns


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
    if span_ns is None or not _is_offloaded(events, loader):
        return None
    if row_count(arrivals) == 0:
        return OffloadStats()
    within = (arrivals["loader"] == loader) & (arrivals["start_ns"] >= span_ns[0])
    within &= arrivals["start_ns"] <= span_ns[1]
    mine = select_rows(arrivals, within)
    if row_count(mine) == 0:
        return OffloadStats()
    cores = _mean_cores(_core_events_of(events, loader), span_ns) / len(np.unique(mine["rank"]))
    return OffloadStats(
        workers=max(round(cores), 1),
        making_ns=float(mine["making_ns"].mean()),
        hosts=len(np.unique(mine["host"].astype(str))),
    )


def _is_offloaded(events: Columns, loader: int) -> bool:
    announced = (events["kind"] == LOADER_EVENT) & (events["value"] == loader)
    return bool(announced.any())


def cores_text(loader: int, host: str) -> str:
    """Return the text of an event about a host's cores."""
    return f"{loader}/{host}"


def _core_events_of(events: Columns, loader: int) -> Columns:
    """Return the events about the cores that a loader may use."""
    cores = select_rows(events, events["kind"] == CORES_EVENT)
    begin = cores_text(loader, "")
    mine = [str(text).startswith(begin) for text in cores["text"]]
    return select_rows(cores, np.array(mine, dtype=np.bool_))


def _mean_cores(core_events: Columns, span_ns: tuple[int, int]) -> float:
    """Return the mean number of cores that all ranks together could use."""
    begin_ns, end_ns = span_ns
    total = 0.0
    for rank in np.unique(core_events["rank"]):
        for host in np.unique(core_events["text"][core_events["rank"] == rank].astype(str)):
            mine = select_rows(
                core_events, (core_events["rank"] == rank) & (core_events["text"] == host)
            )
            order: Ints = np.argsort(mine["at_ns"], kind="stable")
            at_ns = np.clip(mine["at_ns"][order], begin_ns, end_ns)
            lasted: Floats = np.diff(at_ns, append=end_ns).astype(np.float64)
            total += float((mine["value"][order] * lasted).sum())
    return total / max(end_ns - begin_ns, 1)


def offload_span_ns(events: Columns, loader: int) -> tuple[int, int] | None:
    """Return when the first and last host began to make a loader's batches; None if none did."""
    cores = _core_events_of(events, loader)
    cores = select_rows(cores, cores["value"] > 0)
    if row_count(cores) == 0:
        return None
    firsts = [cores["at_ns"][places].min() for places in group_rows(cores, ("rank", "text"))]
    return int(min(firsts)), int(max(firsts))
