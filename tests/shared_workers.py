"""Loaders that share worker processes: their forkserver imports torch once, not once a loader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace import DataLoader
from headrace.data.loader.arguments import is_iterable
from headrace.data.loader.executors.iterable import IterableExecutor
from headrace.data.loader.executors.process import ProcessExecutor


class SharedWorkers:
    """Makes loaders whose batches come from executors that all of them share, one after another."""

    def __init__(self) -> None:
        self._executors: dict[tuple[type, int], ProcessExecutor] = {}

    def loader(self, dataset: Any, *arguments: Any, workers: int, **more: Any) -> DataLoader:
        """Return a loader: of the training process for 0 workers, of shared workers for more."""
        if workers == 0:
            return DataLoader(dataset, *arguments, num_workers=0, **more)
        kind = IterableExecutor if is_iterable(dataset) else ProcessExecutor
        return DataLoader(dataset, *arguments, executor=self.executor(kind, workers), **more)

    def executor(self, kind: type[ProcessExecutor], workers: int) -> ProcessExecutor:
        if (kind, workers) not in self._executors:
            # As many batches ahead as a loader of so many workers has.
            self._executors[kind, workers] = kind(workers, 2 * workers, rank=0)
        return self._executors[kind, workers]

    def close(self) -> None:
        for executor in self._executors.values():
            executor.close()


@contextmanager
def shared_workers() -> Iterator[SharedWorkers]:
    shared = SharedWorkers()
    try:
        yield shared
    finally:
        shared.close()
