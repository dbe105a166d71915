"""Whether a channel's files on this host may be read, asked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

MOST_ENTRIES = 10_000
"""How many of a folder are asked about: on a network disk each is a request."""


def first_unreadable(folder: Path, most: int = MOST_ENTRIES) -> Path | None:
    """Return the first of a folder's files and folders that this user may not read; None: none.

    Links are followed, but for those to folders, into which nobody looks. One that leads nowhere
    is as the script will find it: its data may not need it.

    Args:
        folder: It may be read itself.
        most: How many entries are asked about, at any depth.
    """
    for number, entry in enumerate(_entries(folder)):
        if number >= most:
            break
        if not _may_be_read(entry):
            return Path(entry.path)
    return None


def _may_be_read(entry: os.DirEntry[str]) -> bool:
    try:
        is_folder = entry.is_dir()
        entry.stat()
    except PermissionError:  # a link into a folder that this user may not enter
        return False
    except OSError:  # a link that leads nowhere, or to itself
        return True
    return os.access(entry.path, os.R_OK | (os.X_OK if is_folder else 0))


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a folder before what is in the folders in it."""
    left = [str(folder)]
    while left:
        try:
            with os.scandir(left.pop()) as found:
                for entry in found:
                    yield entry
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except FileNotFoundError:  # removed meanwhile
            continue
