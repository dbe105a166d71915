"""The runs below one folder, by name: what a request may reach, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.records.reader import runs_in


class RunFolders:
    """The runs of a folder.

    A name is looked up among the runs that are there, so no part of a request becomes a path; runs
    that a link leads out of the folder to are not among them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def by_name(self) -> dict[str, Path]:
        """Return the folders of all runs by their names, such as base or sweep/3."""
        found = {}
        for path in runs_in(self.folder):
            if path.resolve().is_relative_to(self.folder):
                found[_shown(path.relative_to(self.folder))] = path
        return found

    def find(self, name: str) -> Path | None:
        """Return a run's folder; None: there is no such run."""
        return self.by_name().get(name)

    def split(self, rest: str) -> tuple[str, Path, str] | None:
        """Return the run that a path begins with: its name, its folder, and what follows.

        The longest name counts, so that a run may be called as a part of a page is.
        """
        known, parts = self.by_name(), rest.split("/")
        for count in range(len(parts), 0, -1):
            name = "/".join(parts[:count])
            if name in known:
                return name, known[name], "/".join(parts[count:])
        return None


def _shown(path: Path) -> str:
    """Return a path as text that any browser takes; bytes that are no text are replaced."""
    return os.fsencode(path.as_posix()).decode("utf-8", errors="replace")
