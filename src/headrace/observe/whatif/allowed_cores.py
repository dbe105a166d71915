"""The cores that a run's ranks and workers may use, by their own affinity and control groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.observe.whatif.tables import Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedCores:
    """The cores of a host that ranks and workers of a run may use."""

    numbers: frozenset[int]  # of all of them together
    count: float  # how many that are, or fewer by a quota
    workers: float  # those that all workers are bound to; infinite unless they share fewer


def read_allowed_cores(process_cores: Columns, processes: Columns) -> AllowedCores | None:
    """Return the cores that processes of one host may use, as they were last; None: not recorded.

    Workers that are bound one by one, each to cores of its own, are not limited together.
    """
    ranks = _numbers_of(process_cores, processes, "rank")
    workers = _numbers_of(process_cores, processes, "worker")
    allowed = frozenset[int]().union(*ranks, *workers)
    if not allowed:
        return None
    shared = set(workers)
    bound = len(next(iter(shared))) if len(shared) == 1 and shared != {allowed} else float("inf")
    return AllowedCores(
        numbers=allowed,
        count=min(float(len(allowed)), _quota(process_cores)),
        workers=bound,
    )


def _numbers_of(process_cores: Columns, processes: Columns, role: str) -> list[frozenset[int]]:
    """Return for each process of a role the cores that it was allowed last."""
    pids = np.unique(processes.having(role=role)["pid"])
    rows = process_cores.where(np.isin(process_cores["pid"], pids))
    found = []
    for places in rows.group("pid"):
        last = places[rows["t_ns"][places].argmax()]
        found.append(parse_numbers(str(rows["numbers"][last])))
    return [numbers for numbers in found if numbers]


def _quota(process_cores: Columns) -> float:
    """Return the cores of the tightest quota; infinite if affinity alone limits the processes."""
    counts = [len(parse_numbers(str(text))) for text in process_cores["numbers"]]
    limited = [
        float(cores)
        for cores, count in zip(process_cores["cores"], counts, strict=True)
        if cores < count
    ]
    return min(limited, default=float("inf"))


def parse_numbers(text: str) -> frozenset[int]:
    """Return the numbers of a list of ranges such as 0-3,8; none if it is empty."""
    found: set[int] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
