"""Channels that are copied to this host, and lie there while the job runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.data.copies.request import END, CopyRequest
from headrace.launch.beside import Beside
from headrace.launch.told import tell

_LISTING_S = 120.0  # to look whether anything has changed, at the end


class Copies:
    """Such channels.

    Args:
        request: Which ones; nothing is copied before `make`.
    """

    def __init__(self, request: CopyRequest) -> None:
        self._beside = Beside("headrace.data.copies.process", request)

    def make(self) -> Mapping[str, Path]:
        """Copy the channels and return where each one lies; see `Beside.start`.

        It takes as long as that does; each request has a deadline.
        """
        answer = self._beside.start()
        return {name: Path(folder) for name, folder in answer.folders.items()}

    def failure(self) -> str | None:
        """Return nothing: what was copied is there."""
        return None

    def end(self, exit_code: int) -> None:
        """Let the channels go; where the job was not stopped, tell what has changed meanwhile."""
        if exit_code < 128:
            self._beside.tell(END)
        if not self._beside.end(_LISTING_S):
            tell("headrace: whether channels changed meanwhile is not known: no answer in time\n")
