"""Artifacts as they were when they were logged: copies in their run's spool, until they are sent.

A script may write the next picture to the same file, or delete a temporary folder, long before a
server that was down takes what was logged.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_COPIES = "artifacts"


@contextmanager
def new_folder(spool: Path) -> Iterator[Path]:
    """Make a folder for the copy of one artifact, and delete it after an error; raises OSError."""
    folder = spool.absolute() / _COPIES / f"{time.time_ns()}-{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def copy_artifact(spool: Path, path: Path) -> Path:
    """Return a copy of a file, or of a folder with all in it; raises OSError."""
    with new_folder(spool) as folder:
        copy = folder / (path.name or "root")
        if path.is_dir():
            shutil.copytree(path, copy, ignore=_ignored(spool), ignore_dangling_symlinks=True)
        else:
            shutil.copyfile(path, copy)
    return copy


def discard_copy(spool: Path, path: Path) -> None:
    """Delete an artifact that was sent if it is a copy; the script's own files stay."""
    folder = path.parent
    if folder.parent == spool.absolute() / _COPIES:
        shutil.rmtree(folder, ignore_errors=True)


def _ignored(spool: Path) -> Callable[[str, Sequence[str]], set[str]]:
    """Return what is left out of a folder that holds the spool: the copies, which would grow."""

    def names(folder: str, found: Sequence[str]) -> set[str]:
        return {_COPIES} & set(found) if spool.samefile(folder) else set()

    return names
