"""The place of a host in a job's records: number, name, instance group; ids of its processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.records.schema import LAUNCHER_HOST


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlace:
    """A host, as the table `hosts` has it."""

    attempt: int
    number: int = LAUNCHER_HOST
    name: str = ""  # "": the machine's own
    group: str = ""  # its instance group

    @property
    def is_elsewhere(self) -> bool:
        """Whether another host keeps its records: the launcher's."""
        return self.number != LAUNCHER_HOST


_HOST_BITS = 32  # Linux has process ids of 22 bits


def job_pid(pid: int, host: int) -> int:
    """Return a process id of a host as the records have it: no two processes share one."""
    return pid if pid < 0 else host << _HOST_BITS | pid


def pid_host(pid: Any) -> Any:
    """Return the number of the host of a process id in the records, or of an array of them."""
    return pid >> _HOST_BITS
