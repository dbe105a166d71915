"""Folders below the system's temporary one (TMPDIR) that no killed process leaves behind for long.

Such a folder has a file that its process has locked. The kernel releases the lock when the process
ends, so the next process that makes a folder of this kind removes those whose locks are free.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from headrace.core.file_lock import open_lock_file, try_lock

_LOCK, _MAKING = "in-use", "making"


class ScratchFolder:
    """An empty folder that is this process's own, until it is removed.

    Args:
        prefix: Of its name; folders of one kind have one.
        is_used: Whether a folder whose process has ended is still in use, by another process.
    """

    def __init__(
        self, prefix: str, is_used: Callable[[Path], bool] = lambda _folder: False
    ) -> None:
        _remove_abandoned(Path(tempfile.gettempdir()), prefix, is_used)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._lock: int | None = open_lock_file(self.path / _MAKING)
        try_lock(self._lock, required=False)
        # Others see it only once it is locked.
        (self.path / _MAKING).rename(self.path / _LOCK)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _remove_abandoned(parent: Path, prefix: str, is_used: Callable[[Path], bool]) -> None:
    for folder in parent.glob(f"{prefix}*"):
        # A folder without the lock file is being made; another user's is not accessible.
        with suppress(OSError), (folder / _LOCK).open("r+b") as lock:
            if try_lock(lock.fileno()) and not is_used(folder):
                shutil.rmtree(folder, ignore_errors=True)
