"""The files of a job's output folder, through links, and what of it cannot be uploaded as it is.

Links are followed, to files and to folders, also out of the folder: a script that links to its best
checkpoint, or to a cache of weights, means what is there. A link to a folder that holds the link
has no end; it is left out, as are links to nothing.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from headrace.core.files import is_temporary
from headrace.jobs.sync.file_groups import BEING_WRITTEN, is_being_written


@dataclass(slots=True)
class OutputFiles:
    """What is below an output folder, by names relative to it."""

    files: dict[str, Path] = field(default_factory=dict)  # without links: where their bytes are
    open_files: set[str] = field(default_factory=set)  # of these, those still open for writing
    missing: dict[str, str] = field(default_factory=dict)  # what cannot be uploaded, and why
    others: dict[str, str] = field(default_factory=dict)  # what has no bytes, as named pipes

    def problems(self) -> dict[str, str]:
        """Return why the files are not what the script meant to leave, by name."""
        return {**self.missing, **dict.fromkeys(self.open_files, BEING_WRITTEN)}


def is_there(path: Path) -> bool:
    """Whether there is anything at a path, or may be, where the disk does not tell.

    Not pathlib's, which takes a link to nothing, a file in a folder's place, and from Python 3.14
    on any error for nothing.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def find_output_files(folder: Path) -> OutputFiles:
    """Return what is below an output folder.

    The caller must ignore SIGIO, see `is_being_written`.
    """
    found = OutputFiles()
    # Folders to look into, with the real folders through which they were reached.
    folders: list[tuple[str, Path, tuple[Path, ...]]] = [("", folder, (_real(folder),))]
    while folders:
        below, place, through = folders.pop()
        try:
            names = sorted(os.listdir(place))  # noqa: PTH208 - names
        except OSError as error:
            found.missing[below or "."] = f"cannot be read: {error.strerror or error}"
            continue
        for each in names:
            name, path = f"{below}/{each}" if below else each, place / each
            if is_temporary(each):
                continue
            inner = _add(found, name, path, through)
            if inner is not None:
                folders.append((name, path, inner))
    return found


def _add(
    found: OutputFiles, name: str, path: Path, through: tuple[Path, ...]
) -> tuple[Path, ...] | None:
    """Add a file; return the real folders through which a folder's contents are reached."""
    try:
        mode = path.stat().st_mode
        real = _real(path)
        if stat.S_ISDIR(mode):
            if path.is_symlink() and any(each.is_relative_to(real) for each in through):
                found.missing[name] = f"is a link to a folder that holds it, {real}"
                return None
            return (*through, real)
        if stat.S_ISREG(mode):
            if is_being_written(real):
                found.open_files.add(name)
            found.files[name] = real
        else:
            found.others[name] = "it is neither file nor folder"
    except OSError as error:
        # Functions that never raise: what cannot be looked at is there as well.
        if os.path.islink(path) and not os.path.exists(path):  # noqa: PTH110, PTH114
            found.missing[name] = "is a link that leads to nothing"
        elif os.path.lexists(path):  # else it is gone meanwhile
            found.missing[name] = f"cannot be read: {error.strerror or error}"
    return None


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
