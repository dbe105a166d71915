"""The job's own cores, also in a container: what fills them, and how many threads want one.

A container sees the load of its whole machine: `/proc/loadavg` counts the threads of all jobs on
it, and with a CPU quota every core of the machine is listed, busy with whatever runs there. So what
the job wants is told by what its own processes used, and others count by what they take of its
cores.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from headrace.observe.doctor.stacks import Sighting
from headrace.observe.whatif.host import Host
from headrace.observe.whatif.measured import Work
from headrace.observe.whatif.tables import Columns, length

FULL = 0.9
"""Cores that are busy for this share have nothing to give: the rest is the scheduler's."""
_CORE = re.compile(r"core_\d+_percent")


def of_the_job(host: Host, system: Columns) -> Host:
    """Return a host with what its cores do as the job feels it.

    Where a CPU quota gives the job fewer cores than it may run on, others fill its share only once
    they leave less of these than the quota. Where the job's own use was not recorded, nothing tells
    how busy its share was.

    Args:
        host: As recorded.
        system: The table.
    """
    listed = sum(_CORE.fullmatch(name) is not None for name in system)
    if host.busy_cores is None or listed <= np.ceil(host.cores):
        return host
    if host.rank_cores is None:
        return replace(host, busy_cores=None, foreign_cores=0.0)
    own = host.busy_cores - host.foreign_cores
    felt = max(host.cores - (listed - host.foreign_cores), 0.0)
    return replace(host, busy_cores=min(own + felt, host.cores), foreign_cores=felt)


def is_full(host: Host) -> bool:
    """Whether a host has no core to spare, whoever uses them."""
    return host.busy_share is not None and host.busy_share >= FULL


def wanted_by_workers(work: Work, workers: int, host: Host, most_threads: float) -> float:
    """Return how many threads of the host's workers ran or waited for a core, on average.

    At work the main thread of a worker waits for a core where they are full, and each of its
    threads gets as much of one as it does; where some are free, who wants one has it.

    Args:
        work: The batches made.
        workers: Workers of a rank.
        host: Their host.
        most_threads: Threads that a worker has.
    """
    if not work.cpu_measured:
        return 0.0
    threads = min(work.threads, most_threads) * (1.0 if is_full(host) else work.cpu_share)
    return host.ranks * workers * (1.0 - work.idle_share) * threads


def wanted_by_ranks(
    seen: tuple[Sighting, ...], wait_share: float, host: Host, most_threads: float
) -> float:
    """Return how many threads of the host's ranks ran or waited for a core; 0 where not known.

    As with workers: on full cores the main thread's share of one tells what each of them gets. It
    wants one whenever the rank does not wait for data.

    Args:
        seen: Where the ranks' main threads were seen.
        wait_share: The share of their time in which they wait for workers, 0 to 1.
        host: Their host.
        most_threads: Threads that a rank has.
    """
    if host.rank_cores is None:
        return 0.0
    wall_ns = sum(sighting.wall_ns for sighting in seen)
    main_share = sum(sighting.cpu_ns for sighting in seen) / max(wall_ns, 1.0)
    if not is_full(host) or main_share <= 0:
        return host.rank_cores
    threads = min(host.rank_cores / host.ranks / main_share, most_threads)
    return max(host.rank_cores, host.ranks * threads * (1.0 - wait_share))


def most_threads(usage: Columns, processes: Columns, role: str) -> float:
    """Return how many threads a process of a role has, on average; infinite where not recorded."""
    if length(usage) == 0 or length(processes) == 0:
        return float("inf")
    pids = processes["pid"][processes["role"].astype(str) == role]
    threads = usage["threads"][np.isin(usage["pid"], pids)]
    return float(threads[threads > 0].mean()) if (threads > 0).any() else float("inf")
