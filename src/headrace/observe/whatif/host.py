"""The host's cores, and how busy they were, as the job feels it.

A container sees its whole machine: with a CPU quota every core of that is listed, busy with
whatever runs there. So what the job wants is told by what its own processes used, and others count
by what they take of its cores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from headrace.observe.whatif.tables import (
    Columns,
    Flags,
    Tables,
    chosen,
    columns,
    grouped,
    length,
)

_CORE = re.compile(r"core_\d+_percent")
_ACCELERATOR = re.compile(r"gpu_(\d+)_\w+")
_FEWEST_LOOKS = 3
"""Fewer looks at the processes say nothing of an average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host of the run: the one with the fewest cores, where there are several.

    Attributes:
        cores: Cores that the job may use.
        ranks: Ranks on it.
        busy_cores: Cores that were busy on average while steps ran; None where not recorded.
        rank_cores: Cores that the processes of all its ranks used, without workers; None likewise.
        foreign_cores: Cores that were busy with anything but the run; 0 where not known.
        accelerators: Accelerators that were recorded; 0 where there are none, or none was asked.
    """

    cores: float
    ranks: int
    busy_cores: float | None
    rank_cores: float | None = None
    foreign_cores: float = 0.0
    accelerators: int = 0

    @property
    def idle_cores(self) -> float | None:
        """Cores with nothing to do, on average; None where not recorded."""
        return None if self.busy_cores is None else max(self.cores - self.busy_cores, 0.0)

    @property
    def busy_share(self) -> float | None:
        """The share of the cores that was busy, 0 to 1; None where not recorded."""
        return None if self.busy_cores is None else min(self.busy_cores / self.cores, 1.0)


def read_host(tables: Tables, span_ns: tuple[int, int] | None = None) -> Host:
    """Return the host's cores and how busy they were.

    Args:
        tables: Where the records are.
        span_ns: From when to when; all of the run by default.
    """
    hosts, processes = columns(tables, "hosts"), columns(tables, "processes")
    known = hosts["cores"] if length(hosts) else np.array([float("inf")])
    ranks = 1
    if length(processes):
        ranks = len(np.unique(processes["rank"][processes["role"] == "rank"]))
    distinct = len(np.unique(hosts["host"])) if length(hosts) else 1
    system = columns(tables, "system")
    busy = _busy_cores(system, span_ns)
    usage = columns(tables, "process_usage")
    run = _used_cores(usage, processes, span_ns)  # with what ranks started: pools of their own
    host = Host(
        cores=float(known.min()),
        ranks=max(-(-max(ranks, 1) // distinct), 1),
        busy_cores=busy,
        rank_cores=_used_cores(usage, processes, span_ns, "rank"),
        foreign_cores=max(busy - run, 0.0) if busy is not None and run is not None else 0.0,
        accelerators=len({found[1] for name in system if (found := _ACCELERATOR.fullmatch(name))}),
    )
    return _as_felt(host, listed=sum(_CORE.fullmatch(name) is not None for name in system))


def _as_felt(host: Host, *, listed: int) -> Host:
    """Return a host with what its cores do as the job feels it.

    Where a CPU quota gives the job fewer cores than it may run on, others fill its share only once
    they leave less of these than the quota. Where the job's own use was not recorded, nothing tells
    how busy its share was.

    Args:
        host: As recorded.
        listed: Cores that the job may run on.
    """
    if host.busy_cores is None or listed <= np.ceil(host.cores):
        return host
    if host.rank_cores is None:
        return replace(host, busy_cores=None, foreign_cores=0.0)
    own = host.busy_cores - host.foreign_cores
    felt = max(host.cores - (listed - host.foreign_cores), 0.0)
    return replace(host, busy_cores=min(own + felt, host.cores), foreign_cores=felt)


def _busy_cores(system: Columns, span_ns: tuple[int, int] | None) -> float | None:
    names = [name for name in system if _CORE.fullmatch(name)]
    inside = _inside(system, span_ns)
    if not names or not inside.any():
        return None
    percent = sum(float(np.nanmean(system[name][inside].astype(np.float64))) for name in names)
    return percent / 100.0


def _inside(system: Columns, span_ns: tuple[int, int] | None) -> Flags:
    """Tell which looks at the host lie between two times."""
    if span_ns is None or length(system) == 0:
        return np.ones(length(system), dtype=np.bool_)
    inside: Flags = (system["t_ns"] >= span_ns[0]) & (system["t_ns"] <= span_ns[1])
    return inside


def _used_cores(
    usage: Columns, processes: Columns, span_ns: tuple[int, int] | None, role: str = ""
) -> float | None:
    """Return the cores that the processes of a role, or all, used together, on average."""
    if length(usage) == 0 or length(processes) == 0:
        return None
    wanted = set((processes["pid"][processes["role"] == role] if role else usage["pid"]).tolist())
    ticks = usage["t_ns"]
    among = np.ones(len(ticks), dtype=np.bool_)
    if span_ns is not None:
        among = (ticks >= span_ns[0]) & (ticks <= span_ns[1])
    looked = chosen(usage, among)
    # Each process is looked at in its own time, so each has its own times between looks.
    each = [chosen(looked, places) for places in grouped(looked, ("pid",))]
    if max(map(length, each), default=0) < _FEWEST_LOOKS:
        return None
    usual_ns = float(np.median(np.concatenate([np.diff(mine["t_ns"]) for mine in each])))
    used_ns, watched_ns = 0.0, 1.0
    for mine in each:
        if int(mine["pid"][0]) in wanted:
            # Before its first look, too: workers that each epoch starts anew have few.
            since_ns = np.diff(mine["t_ns"], prepend=mine["t_ns"][0] - int(usual_ns))
            watched_ns = max(watched_ns, float(since_ns.sum()))
            used_ns += float((mine["cpu_percent"].astype(np.float64) / 100.0 * since_ns).sum())
    return used_ns / watched_ns
