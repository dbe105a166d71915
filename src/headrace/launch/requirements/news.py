"""What hosts announce while they install a job's requirements: told, and written down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.core.errors import LaunchError
from headrace.launch.told import tell
from headrace.records.run_folder import RunFolder


class InstallNews:
    """The news of one file's installs.

    Args:
        file: Its name.
        folder: The run's.
        attempt: The attempt's number.

    Attributes:
        why_not: Why it could not be installed, by the hosts' names.
    """

    def __init__(self, file: str, folder: RunFolder, attempt: int) -> None:
        self._file = file
        self._folder = folder
        self._attempt = attempt
        self._installing: set[str] = set()  # hosts that have said so
        self.why_not: dict[str, str] = {}

    def hear(self, host: str, announced: dict[str, Any]) -> bool:
        """Take in what a host announces, and return whether the job can go on there.

        Args:
            host: The host's name.
            announced: As cluster/installing.py writes it.
        """
        if "installing" in announced:
            said = announced["installing"]
            more = f" (pip: {said})" if said and host in self._installing else ""
            self._installing.add(host)
            tell(f"headrace: {host} installs {self._file}{more}\n")
        elif "installed" in announced:
            if announced["installed"] and not announced["by_another"]:
                tell(f"headrace: {host} has installed {', '.join(announced['installed'])}\n")
            for conflict in announced.get("conflicts", ()):
                tell(f"headrace: {host}: what was there is broken now: {conflict}\n")
            self._note(host, announced["installed"])
        elif "left_out" in announced:
            tell(f"headrace: {host} installs no {self._file}: {announced['left_out']}\n")
        elif "not_installed" in announced:
            why = announced["not_installed"]
            is_told = why in self.why_not.values()
            self.why_not[host] = why
            more = "for the same reason" if is_told else why
            tell(f"headrace: {host}: {self._file} cannot be installed: {more}\n")
            return False
        return True

    def _note(self, host: str, installed: Sequence[str]) -> None:
        try:
            self._folder.note_installed(self._attempt, host, installed)
        except (OSError, LaunchError) as error:
            tell(f"headrace: what {host} has installed cannot be written down: {error}\n")
