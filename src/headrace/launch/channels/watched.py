"""Mounted channels that are looked at twice: whether they changed while the job ran."""

from __future__ import annotations

from headrace.data.copies.request import CopyRequest
from headrace.launch.channels.beside import Beside


class Watched:
    """Such channels; nobody waits for the first look.

    Args:
        request: Which ones.
    """

    def __init__(self, request: CopyRequest) -> None:
        self._beside = Beside("headrace.data.copies.watching", request)
        self._beside.start()

    def failure(self) -> str | None:
        """Return nothing: a change is told, and the script has what it has."""
        return None

    def end(self, exit_code: int) -> None:
        """Where the job was not stopped, tell what has changed meanwhile."""
        self._beside.end_with_a_look(exit_code)
