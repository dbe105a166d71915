"""Channels that are copied to this host, and lie there while the job runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.data.copies.request import CopyRequest
from headrace.launch.channels.beside import Beside


class Copies:
    """Such channels.

    Args:
        request: Which ones; nothing is copied before `make`.
    """

    def __init__(self, request: CopyRequest) -> None:
        self._beside = Beside("headrace.data.copies.process", request)

    def make(self) -> Mapping[str, Path]:
        """Copy the channels and return where each one lies; see `Beside.start_and_wait`.

        It takes as long as that does; each request has a deadline.
        """
        answer = self._beside.start_and_wait()
        return {name: Path(folder) for name, folder in answer.folders.items()}

    def failure(self) -> str | None:
        """Return nothing: what was copied is there."""
        return None

    def end(self, exit_code: int) -> None:
        """Let the channels go; where the job was not stopped, tell what has changed meanwhile."""
        self._beside.end_with_a_look(exit_code)
