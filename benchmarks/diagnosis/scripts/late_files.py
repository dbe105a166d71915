"""Small files that answer late, as those of a network share do: each is a named pipe."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONTENT = bytes(range(256)) * 48


def _serve_one(path: Path, latency_s: float) -> None:
    """Give the content to whoever opens the file, one after the other."""
    while True:
        with path.open("wb") as pipe:  # waits for a reader
            following = path.with_suffix(".next")
            os.mkfifo(following)
            following.replace(path)  # the next reader opens another pipe, so this one sees an end
            time.sleep(latency_s)
            pipe.write(CONTENT)


def _serve(paths: list[Path], latency_s: float) -> None:
    threads = [threading.Thread(target=_serve_one, args=(path, latency_s)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def late_files(count: int, latency_s: float) -> Iterator[list[Path]]:
    """Make files that give their bytes so much later than they are asked; the context gives them.

    A file must not be read twice at a time.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number:04}.raw" for number in range(count)]
        for path in paths:
            os.mkfifo(path)
        server = multiprocessing.Process(target=_serve, args=(paths, latency_s), daemon=True)
        server.start()
        try:
            yield paths
        finally:
            server.kill()
            server.join()
