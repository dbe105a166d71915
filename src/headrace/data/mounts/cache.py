"""Where a mount keeps what was read: a folder for each URL, which one mount has at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from headrace.core.hashes import blake2b


class MountCache:
    """Such a folder, held until it is closed, or until this process ends.

    Args:
        caches: Where such folders lie; made.
        url: Of what is mounted.

    Attributes:
        folder: The folder; one of this mount's own where another mount has the URL's.
    """

    def __init__(self, caches: Path, url: str) -> None:
        caches.mkdir(parents=True, exist_ok=True)
        self.folder = caches / blake2b(url.encode(), 12).hex()
        self._lock = os.open(f"{self.folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._is_own = False
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._is_own = True
            self.folder = caches / f"{self.folder.name}-{os.getpid()}"
        self.folder.mkdir(exist_ok=True)

    def close(self) -> None:
        """Let others have it."""
        if self._is_own:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
