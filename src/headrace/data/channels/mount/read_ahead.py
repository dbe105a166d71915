"""The process that reads files of a mount ahead of the script, so that they are cached in time.

It reads every file, in the order of names and many concurrently, until it has read so many bytes;
the mount's program caches them. An unreadable file is skipped: the script gets the error when it
reads it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock

from headrace.core.process.sidecar import SidecarParent, run_sidecar

_READERS = 32  # a small object costs one round trip, whatever its size
_PIECE_BYTES = 2**20
_NICENESS = 10


class _ByteBudget:
    """The bytes that may still be read."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._lock = Lock()

    def take(self, count: int) -> bool:
        """Subtract bytes, and return whether any are left."""
        with self._lock:
            self._left -= count
            return self._left > 0


def main(parent: SidecarParent) -> None:
    """Read the files of a folder."""
    os.nice(_NICENESS)
    folder, budget = Path(parent.request["folder"]), _ByteBudget(parent.request["most_bytes"])
    with ThreadPoolExecutor(_READERS) as readers:
        for _ in readers.map(lambda file: _read(file, budget), _files(folder)):
            if not budget.take(0):
                readers.shutdown(wait=False, cancel_futures=True)
                return


def _files(folder: Path) -> Iterator[Path]:
    for above, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(above) / name for name in sorted(names))


def _read(file: Path, budget: _ByteBudget) -> None:
    with suppress(OSError), file.open("rb", buffering=0) as source:
        while (count := len(source.read(_PIECE_BYTES))) and budget.take(count):
            pass


if __name__ == "__main__":
    run_sidecar(main)
