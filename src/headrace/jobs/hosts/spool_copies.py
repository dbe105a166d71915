"""What ranks on other machines log for experiments, copied into the run's spool."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from headrace.cluster.agent import FileGrowth, append_growths
from headrace.core.console import print_status


class SpoolCopies:
    """Copies of the hosts' spools; None for the folder: the run is not tracked."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._unwritten: list[FileGrowth] = []

    def add(self, host: str, growths: Sequence[FileGrowth]) -> None:
        """Write what a host's ranks have logged; on a full disk it is tried again later."""
        # Files of several hosts may have one name.
        self._unwritten += [replace(each, path=f"{host}-{each.path}") for each in growths]
        self._write()

    def close(self) -> None:
        """Try once more to write what is left, and say what is lost."""
        self._write()
        lost = sum(len(each.content) for each in self._unwritten)
        if lost:
            files = ", ".join(dict.fromkeys(each.path for each in self._unwritten))
            print_status(
                f"{lost:,} bytes that ranks on other machines logged for experiments are lost, as "
                f"they cannot be written to {self._folder}: {files}"
            )

    def _write(self) -> None:
        if self._folder is None:
            self._unwritten.clear()
            return
        with suppress(OSError):
            append_growths(self._folder, self._unwritten)
            self._unwritten.clear()
