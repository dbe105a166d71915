"""The output of a run's ranks: its files, and the ends of them, searched."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from headrace.core.errors import UsageError

_READ_BYTES = 4 << 20
"""Only the end of a long file is read."""
_LONGEST_LINE = 2000
"""Characters that are sent of a line, from its beginning."""
_CONTROLS = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\](?:[^\x07\x1b\r\n]*(?:\x07|\x1b\\)|R|P[0-9A-Fa-f]{7})?"
    r"|[ -/]+[0-~]|[@-Z\\^_a-z0-9<=>|}~])"
)
"""Escape sequences of terminals, such as colours: a page has no use for them."""


class LogFiles:
    """The log files of a run, or of one of its attempts, by their paths below its `logs` folder."""

    def __init__(self, run: Path, attempt: int | None = None) -> None:
        folder = (run / "logs").resolve()
        self._folder = folder if folder.is_relative_to(run.resolve()) else None
        self._of = "" if attempt is None else f"attempt-{attempt}/"

    def listed(self) -> list[dict[str, Any]]:
        """Return names and sizes, the latest attempt's first, as JSON's own types."""
        return [
            {"name": name, "size": path.stat().st_size} for name, path in self._by_name().items()
        ]

    def tail(self, name: str, query: str, lines: int) -> dict[str, Any]:
        """Return the last lines of a file that hold a text, and how much of it was searched.

        Raises:
            UsageError: There is no such file.
        """
        path = self._by_name().get(name)
        if path is None:
            raise UsageError(f"There is no log {name!r} of this run.")
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _READ_BYTES, 0))
            text = file.read(_READ_BYTES).decode("utf-8", errors="replace")
        shown = _CONTROLS.sub("", text).splitlines()
        found = [line for line in shown if query.lower() in line.lower()]
        return {
            "lines": [_cut(line, query) for line in found[-lines:]],
            "matches": len(found),
            "size": size,
            "searched": min(size, _READ_BYTES),
        }

    def _by_name(self) -> dict[str, Path]:
        """Return the files, standard output first, but for hidden ones, which no process printed.

        Links out of the folder are not followed.
        """
        if self._folder is None:
            return {}
        files = [
            (path, name)
            for path in self._folder.rglob("*")
            if (name := path.relative_to(self._folder).as_posix()).startswith(self._of)
            and not _is_hidden(name)
            and path.is_file()
            and path.resolve().is_relative_to(self._folder)
        ]
        return {name: path for path, name in sorted(files, key=lambda each: _place(each[1]))}


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _cut(line: str, query: str) -> str:
    """Return a line, or of a long one the part with what is searched, and what it leaves out."""
    if len(line) <= _LONGEST_LINE:
        return line
    at = max(line.lower().find(query.lower()), 0)
    begin = max(min(at - _LONGEST_LINE // 2, len(line) - _LONGEST_LINE), 0)
    end = begin + _LONGEST_LINE
    before = f"[{begin:,} characters] ... " if begin else ""
    after = f" ... [{len(line) - end:,} characters]" if end < len(line) else ""
    return f"{before}{line[begin:end]}{after}"


_STARTS = re.compile(r"(?:attempt-([0-9]+)/)?(?:restart-([0-9]+)/)?")
"""What a log's path begins with: its attempt, and how often ranks had been started before."""


def _place(name: str) -> tuple[Any, ...]:
    """Return a log's place: the latest attempt and restart first, standard output before errors.

    Numbers in names are ordered as numbers: rank-2 before rank-10.
    """
    begin = _STARTS.match(name)
    assert begin is not None  # it may match nothing
    attempt, restart = (int(number or 0) for number in begin.groups())
    parts = re.split("([0-9]+)", name[begin.end() :])  # texts and numbers in turn
    rest = tuple(int(part) if place % 2 else part for place, part in enumerate(parts))
    return -attempt, -restart, name.endswith(".stderr"), rest
