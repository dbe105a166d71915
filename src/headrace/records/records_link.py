"""The link by which processes that Ray has started on a host find the records of that host.

Ray gives the workers of a script the same variables on all hosts. On hosts of other machines than
the launcher's, whose folders have names of their own, a link of one name leads to the records.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import LaunchError

_PREFIX = "headrace-records-"


@dataclass(frozen=True, slots=True)
class RecordsLink:
    """The link of a job; its name is unguessable, as the folder of the links is everybody's."""

    name: str

    @property
    def path(self) -> Path:
        """Where it is on any host."""
        return Path(tempfile.gettempdir()) / f"{_PREFIX}{self.name}"

    def make(self, records: Path) -> None:
        """Have it lead to a records folder; raises LaunchError where it cannot be made."""
        try:
            self.path.symlink_to(records)
        except OSError as error:
            raise LaunchError(f"The link {self.path} cannot be made: {error}.") from error

    def find(self) -> Path | None:
        """Return where it leads; None: this host has none that this user made."""
        try:
            is_own = self.path.lstat().st_uid == os.geteuid()
            records = self.path.readlink()
        except OSError:
            return None
        return records if is_own and records.is_dir() else None

    def remove(self) -> None:
        """Remove it, if it is there."""
        with suppress(OSError):
            self.path.unlink()
