"""Temporary folders that do not outlive their process, even when it is killed."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "headrace-checkpoint-"
_LOCK = "in-use"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make an empty folder below the system's temporary one (TMPDIR), removed afterwards.

    What killed processes left behind is removed too: the kernel releases the lock of a folder
    when the process that held it ends.
    """
    _remove_abandoned(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    with (folder / "making").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "making").rename(folder / _LOCK)  # seen by others only once it is held
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        # A folder without the lock file is just being made; one of another user is not ours.
        with suppress(OSError), (folder / _LOCK).open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
