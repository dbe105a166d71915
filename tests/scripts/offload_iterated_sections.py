"""Iterable datasets on auxiliary hosts, a section after another; prints a line for each.

Most of them work only where the script runs. Several share one loader, whose dataset changes
between its epochs. The first one has no auxiliary host; the last one fails everywhere.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from offload_iterated import iterated, resumed
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import headrace
from headrace.core.errors import LoaderError

SAMPLES = 96


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
        if index > 50 and os.environ.get("SERVER"):
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
        if index > 50 and os.environ.get("SERVER"):
            time.sleep(1000)


class Unmounted(Shared):
    """Its auxiliary workers are killed in the middle; those that follow lack what these had."""

    def look_at(self, index: int) -> None:
        if os.environ.get("SERVER"):
            had = Path(f"worker-{get_worker_info().id}-had-it")
            if index > 50 and not had.exists():
                had.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if had.exists():
                Path("elsewhere/sample").read_text()


class Few(Shared):
    """Has shards for fewer workers, and refuses to have none, as WebDataset does."""

    def __iter__(self):
        if get_worker_info().id > 2:
            raise ValueError("no samples found; perhaps you have fewer shards than workers")
        yield from super().__iter__()


class Unknown(Shared):
    """Belongs to a module that auxiliary hosts lack."""

    def __reduce__(self):
        return only_here, ()


def only_here() -> Shared:
    if os.environ.get("SERVER"):
        import a_module_of_that_name  # noqa: F401
    return Shared()


class Unshared(IterableDataset):
    """Does not ask which worker it is: right as long as there is one."""

    def __iter__(self):
        yield from range(12)


class Plain(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        yield from range(info.id, 24, info.num_workers)


class Current(IterableDataset):
    """The dataset of the shared loader: the one that a section has set."""

    def __init__(self) -> None:
        self.dataset: Shared | None = None

    def __iter__(self):
        return iter(self.dataset)


CURRENT = Current()
SHARED = DataLoader(CURRENT, 4, num_workers=2)


def read(dataset: Shared, epochs: int = 1, loader: DataLoader = SHARED) -> list[list[list[int]]]:
    """Return the batches of each epoch."""
    CURRENT.dataset = dataset
    return [[batch.tolist() for batch in loader] for _ in range(epochs)]


def alone() -> list[list[list[int]]]:
    batches = read(Files(), loader=DataLoader(Files(), 4, num_workers=2))
    sys.stdout.write("no server was needed\n")
    while not Path("servers-run").exists():
        time.sleep(0.01)
    return batches


def few() -> str:
    with pytest.raises(ValueError, match="no samples found") as caught:
        list(DataLoader(Few(), 4, num_workers=2))
    return "".join(traceback.format_exception(caught.value))


def unshared() -> list[list[int]]:
    return [
        torch.cat(list(loader)).tolist()
        for kind in (DataLoader, headrace.DataLoader)
        for workers in (0, 1)
        for loader in [kind(Unshared(), 4, num_workers=workers)]
        for _ in range(2)
    ]


def fallen() -> list[int]:
    """Make a loader that the hosts can help, then two that they cannot; these say so."""
    hosts_file = Path(os.environ["HEADRACE_OFFLOAD"])
    helped = headrace.DataLoader(Plain(), 2, num_workers=2)
    counted = [helped.state_dict()["workers"]]
    moved = hosts_file.rename(hosts_file.with_suffix(".moved"))
    first = headrace.DataLoader(Plain(), 2, num_workers=2)
    counted.append(first.state_dict()["workers"])
    for copied in (first, copy.copy(first)):
        assert sorted(torch.cat(list(copied)).tolist()) == list(range(24))
        counted.append(copied.state_dict()["workers"])
    helped.load_state_dict({**helped.state_dict(), "position": 3})
    for executor in helped._idle.executors:  # as after a kill of its forkserver
        executor.close()
    with pytest.raises(LoaderError, match="goes on from batch 3, counted among 4 workers"):
        iter(helped)
    moved.rename(hosts_file)
    return counted


SECTIONS: dict[str, Callable[[], object]] = {
    "alone": alone,
    "files": lambda: read(Files(), 2),
    "hanging": lambda: read(Hanging()),  # the shared loader's next section takes its cores back
    "unmounted": lambda: read(Unmounted()),
    "unknown": lambda: read(Unknown()),
    "locked": lambda: read(Locked(), loader=DataLoader(Locked(), 4, num_workers=2)),
    "few": few,
    "unshared": unshared,
    "fallen": fallen,
    "iterated": lambda: iterated(2),
    "resumed": lambda: resumed(2),
}


if __name__ == "__main__":
    for name, section in SECTIONS.items():
        try:
            result = section()
        except Exception:  # noqa: BLE001 - the other sections are other tests'
            sys.stderr.write(f"section {name} failed: {traceback.format_exc()}")
        else:
            sys.stdout.write(json.dumps({"section": name, "result": result}) + "\n")
    read(Wrong())
