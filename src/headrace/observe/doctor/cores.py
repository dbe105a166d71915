"""How many threads of the job want a core, and whether its cores have any to give.

`/proc/loadavg` does not tell: in a container it counts the threads of all jobs on the machine.
"""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.stacks import Sighting
from headrace.observe.whatif.host import Host
from headrace.observe.whatif.measured import Work
from headrace.observe.whatif.simulation import FULL
from headrace.observe.whatif.tables import Columns, length


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
