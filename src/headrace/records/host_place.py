"""The place of a host in a job's records: its number, its name and its instance group."""

from __future__ import annotations

from dataclasses import dataclass

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
