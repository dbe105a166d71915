"""The hosts of a run in its records: whose samples are whose, and where each rank was."""

from __future__ import annotations

import numpy as np

from headrace.observe.whatif.tables import Columns, Tables, columns
from headrace.records.host_place import pid_host
from headrace.records.schema import LAUNCHER_HOST
from headrace.records.system_table import HOST_COLUMN


def of_host(system: Columns, number: int = LAUNCHER_HOST) -> Columns:
    """Return the rows of `system` of one host; those of older records are the launcher's."""
    if HOST_COLUMN not in system:
        return system if number == LAUNCHER_HOST else system.where(np.zeros(system.count, bool))
    numbers = np.maximum(system[HOST_COLUMN], LAUNCHER_HOST)  # -1: unknown, of older records
    is_here = numbers == number
    return system if is_here.all() else system.where(is_here)


def rank_hosts(tables: Tables) -> dict[int, int]:
    """Return the number of each rank's host."""
    ranks = columns(tables, "processes").having(role="rank")
    hosts = np.maximum(ranks["host"], LAUNCHER_HOST)
    return dict(zip(ranks["rank"].tolist(), hosts.tolist(), strict=True))


def processes_on(rows: Columns, number: int) -> Columns:
    """Return the rows about processes of one host, of a table with their ids."""
    is_here = pid_host(rows["pid"]) == number
    return rows if is_here.all() else rows.where(is_here)


def training_host(tables: Tables) -> int:
    """Return the number of the host with the most ranks; of several the first."""
    hosts = list(rank_hosts(tables).values())
    return min(hosts, key=lambda each: (-hosts.count(each), each), default=LAUNCHER_HOST)
