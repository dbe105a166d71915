"""The runs below one folder, by name: what a request may reach, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from headrace.core.errors import UsageError
from headrace.records.reader import check_readable, closed_folders_in, find_run, is_run, runs_in
from headrace.records.run_folder import runs_folder


class RunFolders:
    """The runs of a folder.

    A name is looked up among the runs that are there, so no part of a request becomes a path; runs
    that a link leads out of the folder to are not among them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._known: dict[str, Path] = {}

    def by_name(self) -> dict[str, Path]:
        """Return the folders of all runs by their names, such as base or sweep/3."""
        self._known = self._named(runs_in(self.folder))
        return self._known

    def find(self, names: Iterable[str]) -> dict[str, Path]:
        """Return the folders of runs by their names.

        Raises:
            UsageError: One of them is not there.
            RecordsError: This user may not read it.
        """
        known, found = self.by_name(), {}
        for name in names:
            if name not in known:
                if (closed := self.closed_by_name().get(name)) is not None:
                    check_readable(closed)
                raise UsageError(f"There is no run {name!r} in {self.folder}.")
            found[name] = known[name]
        return found

    def closed_by_name(self) -> dict[str, Path]:
        """Return the folders that may be runs, and that this user may not read, by their names."""
        return self._named(closed_folders_in(self.folder))

    def _named(self, paths: Iterable[Path]) -> dict[str, Path]:
        return {
            _shown(path.relative_to(self.folder)): path for path in paths if self._is_within(path)
        }

    def _is_within(self, path: Path) -> bool:
        """Whether no link leads a path out of the folder."""
        return path.resolve().is_relative_to(self.folder)

    def split(self, rest: str) -> tuple[str, Path, str] | None:
        """Return the run that a path begins with: its name, its folder, and what follows.

        The longest name counts, so that a run may be called as a part of a page is.

        Raises:
            RecordsError: This user may not read it.
        """
        # Most requests are about runs that were listed before: to list thousands takes a while.
        found = _split(rest, self._known)
        if found is None or not (self._is_within(found[1]) and is_run(found[1])):
            found = _split(rest, self.by_name())
        if found is None and (closed := _split(rest, self.closed_by_name())) is not None:
            check_readable(closed[1])
        return found


def find_folders(run: str | None, runs_dir: str | None) -> tuple[RunFolders, str | None]:
    """Return the runs among which a run is, and its name there; of no run, those of `runs_dir`.

    Raises:
        UsageError: There is no such run, or only by a link out of its folder.
        RecordsError: This user may not read it.
    """
    if run is None:
        return RunFolders(runs_folder(runs_dir)), None
    path = find_run(run, runs_dir)
    for folder in (runs_folder(runs_dir), path.parent):
        folders = RunFolders(folder)
        for name, found in folders.by_name().items():
            if found.resolve() == path:
                return folders, name
    raise UsageError(f"{path} cannot be shown: a link leads to it.")


def _split(rest: str, known: Mapping[str, Path]) -> tuple[str, Path, str] | None:
    parts = rest.split("/")
    for count in range(len(parts), 0, -1):
        name = "/".join(parts[:count])
        if name in known:
            return name, known[name], "/".join(parts[count:])
    return None


def _shown(path: Path) -> str:
    """Return a path as text that any browser takes; bytes that are no text are replaced."""
    return os.fsencode(path.as_posix()).decode("utf-8", errors="replace")
