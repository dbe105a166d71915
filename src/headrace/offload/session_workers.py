"""The worker pool of a server session, and its workers' records."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.data.loader.batch_builder import PickledLoaderSpec
from headrace.data.loader.workers.pool import WorkerPool
from headrace.offload.protocol import LoaderSpecMessage
from headrace.offload.worker_records import WorkerRecords


class SessionWorkers:
    """The worker pool of a session: as many workers as cores, or one a partition."""

    def __init__(self, cores: int, slots: list[int], folder: Path) -> None:
        # None before the first loader spec, and after one that could not be loaded.
        self.pool: WorkerPool | None = None
        self.partitions = 0  # of an iterable dataset; 0 for a map-style one
        self._cores = cores
        self._slots = slots
        self._folder = folder
        self._pool_arguments: object = None  # the pool's path, variables and partitions
        self._records: WorkerRecords | None = None
        self._is_recording = True  # by the proxy's last message

    def load(self, spec: LoaderSpecMessage) -> None:
        """Start workers with a loader spec; raises any error of the user's code."""
        root = Path.cwd()
        folder = spec.folder_below(root)
        variables = {**spec.variables, **self._record_variables(spec.loader)}
        pool_arguments = spec.path, variables, spec.strands
        if self.pool is not None and not (
            pool_arguments == self._pool_arguments and self.pool.usable
        ):
            self.end()
        if self.pool is None:
            self._pool_arguments, self.partitions = pool_arguments, spec.strands
            # Each partition of an iterable dataset has a worker, started with its first task.
            self.pool = WorkerPool(
                spec.strands or self._cores,
                self._slots,
                rank=spec.rank,
                queues=spec.strands or 1,
                beginning=0 if spec.strands else None,
                path=[*(str(root / entry) for entry in spec.path), *sys.path],
                variables=variables,
            )
        self.pool.end_workers()  # so that none writes to the slots of returned tasks
        self.pool.start(
            PickledLoaderSpec(content=spec.content, folder=str(folder), variables=variables)
        )

    def _record_variables(self, loader: int | None) -> dict[str, str]:
        """Return the variables with which workers record; empty if they are not to."""
        if loader is None:
            return {}
        if self._records is None:
            try:
                self._records = WorkerRecords(loader, self._folder)
            except OSError:  # no room: batches matter more
                return {}
            self._records.turn(on=self._is_recording)
        return self._records.variables

    def turn_recording(self, *, on: bool) -> None:
        """Turn the workers' recording on or off."""
        self._is_recording = on
        if self._records is not None:
            self._records.turn(on=on)

    def new_rows(self, *, at_once: bool = False) -> bytes | None:
        """Return what workers have recorded since; see `WorkerRecords.due`."""
        return None if self._records is None else self._records.due(at_once=at_once)

    def end(self) -> None:
        """End the pool."""
        if self.pool is not None:
            self.pool.close()
            self.pool = None

    def close(self) -> None:
        """End the pool, and drop the records that were not sent."""
        self.end()
        if self._records is not None:
            self._records.close()
