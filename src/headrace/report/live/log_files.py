"""The output of a run's ranks: its files, and the ends of them, searched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from headrace.core.errors import UsageError

_READ_BYTES = 4 << 20
"""Only the end of a long file is read."""


class LogFiles:
    """The log files of a run, by their paths below its `logs` folder."""

    def __init__(self, run: Path) -> None:
        self._folder = (run / "logs").resolve()

    def listed(self) -> list[dict[str, Any]]:
        """Return names and sizes, the latest attempt's first, as JSON's own types."""
        return [
            {"name": name, "size": path.stat().st_size} for name, path in self._by_name().items()
        ]

    def tail(self, name: str, query: str, lines: int) -> dict[str, Any]:
        """Return the last lines of a file that hold a text; UsageError: there is no such file."""
        path = self._by_name().get(name)
        if path is None:
            raise UsageError(f"There is no log {name!r} of this run.")
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _READ_BYTES, 0))
            text = file.read(_READ_BYTES).decode("utf-8", errors="replace")
        found = [line for line in text.splitlines() if query.lower() in line.lower()]
        return {
            "lines": found[-lines:],
            "matches": len(found),
            "truncated": size > _READ_BYTES or len(found) > lines,
        }

    def _by_name(self) -> dict[str, Path]:
        """Return the files, standard output first; links out of the folder are not followed."""
        files = sorted(
            (
                path
                for path in self._folder.rglob("*")
                if path.is_file() and path.resolve().is_relative_to(self._folder)
            ),
            key=lambda path: (path.suffix == ".stderr", path),
        )
        attempts = sorted({path.relative_to(self._folder).parts[0] for path in files}, reverse=True)
        return {
            path.relative_to(self._folder).as_posix(): path
            for attempt in attempts
            for path in files
            if path.relative_to(self._folder).parts[0] == attempt
        }
