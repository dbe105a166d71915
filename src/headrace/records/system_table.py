"""The columns of the table `system`: one row a tick of a host, columns for each core and GPU.

The columns that a host has are determined when its recording starts; those that other hosts have
are empty in its rows.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.records.schema import TABLES_BY_NAME

NAME = "system"
HOST_COLUMN = "host"
TABLE_NAMES = (*TABLES_BY_NAME, NAME)
TIME_COLUMN = "t_ns"
MEANING = (
    "the host at one moment; percentages and rates are over the time since the row before; in a "
    "long run the mean of some moments, `t_ns` the last of them"
)


@dataclass(frozen=True, slots=True)
class SystemColumn:
    """One column, or one for each core or GPU."""

    name: str  # with the unit; `{}` stands for the number of the core or GPU
    meaning: str  # in one line
    whole: bool = False  # a 64-bit integer; else a 32-bit float


COLUMNS = (
    SystemColumn("t_ns", "when, by the host's monotonic clock", whole=True),
    SystemColumn("host", "number of the host in `hosts`; older records lack it", whole=True),
    SystemColumn("cpu_user_percent", "of the job's cores together: running programs"),
    SystemColumn("cpu_system_percent", "of the same cores: in the kernel"),
    SystemColumn("io_wait_percent", "of the same cores: idle with a disk read or write under way"),
    SystemColumn("cpu_steal_percent", "of the same cores: taken by other guests of the machine"),
    SystemColumn("cpu_throttled_percent", "how long the container's CPU quota stopped it"),
    SystemColumn(
        "cpu_pressure_percent", "time in which a thread of the job, or of the host, lacked a core"
    ),
    SystemColumn("core_{}_percent", "of this core: busy; cores that the job may use"),
    SystemColumn("load_1_minute", "threads that ran or waited to, a mean over a minute"),
    SystemColumn("running_threads", "threads that ran or waited for a core at that moment"),
    SystemColumn("memory_used_bytes", "of the host: in use, caches not counted", whole=True),
    SystemColumn("memory_available_bytes", "of the host: still to be had", whole=True),
    SystemColumn("shared_memory_bytes", "of the host: in shared memory and tmpfs", whole=True),
    SystemColumn("job_memory_bytes", "counted against the container's limit", whole=True),
    SystemColumn("disk_read_bytes_per_s", "read from all disks"),
    SystemColumn("disk_write_bytes_per_s", "written to all disks"),
    SystemColumn("net_received_bytes_per_s", "received from other hosts"),
    SystemColumn("net_sent_bytes_per_s", "sent to other hosts"),
    SystemColumn("gpu_{}_utilisation_percent", "time in which any kernel ran"),
    SystemColumn("gpu_{}_sm_percent", "its multiprocessors that were busy; Hopper and newer"),
    SystemColumn("gpu_{}_memory_bytes", "its memory in use", whole=True),
    SystemColumn("gpu_{}_memory_total_bytes", "its memory, used or not", whole=True),
    SystemColumn("gpu_{}_power_w", "power drawn"),
    SystemColumn("gpu_{}_pcie_received_bytes_per_s", "received over PCIe: copies to the device"),
    SystemColumn("gpu_{}_pcie_sent_bytes_per_s", "sent over PCIe: copies from the device"),
)
"""All columns that a host can have, in order."""

_BY_NAME = {column.name: column for column in COLUMNS}
_NUMBER = re.compile(r"(?<=_)\d+(?=_)")


def column_description(name: str) -> SystemColumn:
    """Return the description of a host's column, such as `core_3_percent`; KeyError: none such."""
    return _BY_NAME.get(name) or _BY_NAME[_NUMBER.sub("{}", name, count=1)]


def sorted_columns(names: Sequence[str]) -> list[str]:
    """Return a host's columns in the registry's order, cores and GPUs by number."""
    places = {column.name: place for place, column in enumerate(COLUMNS)}

    def place(name: str) -> tuple[int, int]:
        number = _NUMBER.search(name)
        return places[column_description(name).name], int(number[0]) if number else 0

    return sorted(names, key=place)


def stored_columns(store: sqlite3.Connection) -> list[str]:
    """Return the columns of `system` in a store, in the registry's order."""
    return sorted_columns([row[1] for row in store.execute(f"PRAGMA table_info({NAME})")])
