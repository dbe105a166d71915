"""Iterable datasets that only work where the script runs, or nowhere: argv[1] says which."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SAMPLES, WORKERS = 96, 4  # two of them here


class Shared(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for index in range(info.id, SAMPLES, info.num_workers):
            self.look_at(index)
            yield index

    def look_at(self, index: int) -> None:
        pass


class Files(Shared):
    def look_at(self, index: int) -> None:
        if index > 50 and os.environ.get("STATION"):
            Path("nowhere/sample").read_text()


class Wrong(Shared):
    def look_at(self, index: int) -> None:
        if index == 50:
            raise ValueError("a picture without pixels")


class Locked(Shared):
    def __init__(self) -> None:
        self.guard = threading.Lock()


class Hanging(Shared):
    def look_at(self, index: int) -> None:
        if index > 50 and os.environ.get("STATION"):
            time.sleep(1000)


class Unmounted(Shared):
    """Its workers elsewhere are killed in the middle; those that follow lack what these had."""

    def look_at(self, index: int) -> None:
        if os.environ.get("STATION"):
            had = Path(f"worker-{get_worker_info().id}-had-it")
            if index > 50 and not had.exists():
                had.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if had.exists():
                Path("nowhere/sample").read_text()


class Few(Shared):
    """Has shards for fewer workers, and refuses to have none, as WebDataset does."""

    def __iter__(self):
        if get_worker_info().id > 2:
            raise ValueError("no samples found; perhaps you have fewer shards than workers")
        yield from super().__iter__()


class Unknown(Shared):
    """Is of a module that other hosts have not."""

    def __reduce__(self):
        return only_here, ()


def only_here() -> Shared:
    if os.environ.get("STATION"):
        import a_module_of_that_name  # noqa: F401
    return Shared()


if __name__ == "__main__":
    kinds = {
        one.__name__.lower(): one
        for one in (Files, Wrong, Locked, Hanging, Unmounted, Few, Unknown)
    }
    loader = DataLoader(kinds[sys.argv[1]](), 4, num_workers=2)
    for _ in range(2 if sys.argv[1] == "files" else 1):
        came = [batch.tolist() for batch in loader]
        assert sorted(index for batch in came for index in batch) == list(range(SAMPLES))
        workers = {index % WORKERS for index in came[0]}
        assert len(workers) == 1 or sys.argv[1] == "locked", came[0]
    sys.stdout.write("whole\n")
