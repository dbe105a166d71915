"""What jobs of Vertex AI's SDK keep in the runs folder, beside their runs, and when that goes.

Unpacked packages and files of requirements stay while a run there names them, as it goes on or may
be resumed, and for a week from their last use, as a job may be made of them at any moment.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from headrace.core.files import temporary_name

_KEPT_S = 7 * 86_400.0
_RUN_FILES = "*/run.json"


def note_use(path: Path) -> bool:
    """Take note that a kept file or folder is used now; False: it is not there."""
    with suppress(OSError):  # another user's
        os.utime(path)
    return path.exists()


def remove_unused(folder: Path) -> None:
    """Remove what is kept in a folder of the runs folder without need, as far as possible."""
    with suppress(OSError):  # where a run cannot be read, what it needs is not known
        old = {each.name: each for each in folder.iterdir() if _is_old(each)}
        for name in old.keys() - _named_by_runs(folder.parent, old):
            with suppress(OSError):
                _remove(old[name])


def _is_old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > _KEPT_S


def _named_by_runs(runs: Path, names: Collection[str]) -> set[str]:
    """Return those of some names that the files of runs hold; raises OSError."""
    if not names:
        return set()
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in runs.glob(_RUN_FILES))
    return {name for text in texts for name in names if name in text}


def _remove(path: Path) -> None:
    gone = path.with_name(temporary_name())
    path.rename(gone)
    if not _is_old(gone):  # it was used at this moment
        gone.rename(path)
    elif gone.is_dir():
        shutil.rmtree(gone)
    else:
        gone.unlink()
