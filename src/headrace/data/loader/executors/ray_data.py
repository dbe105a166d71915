"""The executor for Ray Datasets: Ray's processes make batches, each rank takes its part.

Ray is not imported here: an object's class shows whether it is Ray's.
"""

from __future__ import annotations

import copy
import os
import queue
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.core.errors import DatasetError, LoaderTimeoutError, UsageError
from headrace.core.world import World
from headrace.data.loader.batch_builder import LoaderSpec
from headrace.data.loader.executors.base import BuiltBatch, SingleBatchExecutor
from headrace.data.loader.failures import BatchFailure
from headrace.sampling.seeds import batch_seed

ColumnBatch = dict[str, NDArray[Any]]
_WINDOW_BATCHES = 8
_OWN_ORDER = "Ray's dataset decides its own order; shuffle=True shuffles it in windows"
_REFUSED = {
    "sampler": _OWN_ORDER,
    "batch_sampler": _OWN_ORDER,
    "num_workers": "Ray's own processes make its batches; map_batches(concurrency=...) says how "
    "many",
    "worker_init_fn": "Ray's own processes make its batches; map_batches takes a class, whose "
    "objects begin once a process",
    "executor": "Ray's own processes make its batches",
    "lanes": "Ray's dataset has no shards; window= says how many samples are shuffled together",
}
_TENSOR_KINDS = "biufc"  # NumPy's kinds that torch has, too: bool, int, uint, float, complex


def is_ray_dataset(dataset: Any) -> bool:
    """Return whether a dataset is a `ray.data.Dataset` or a `ray.data.DataIterator`."""
    return _is_whole(dataset) or _has_class(dataset, "ray.data.iterator", "DataIterator")


def _is_whole(dataset: Any) -> bool:
    return _has_class(dataset, "ray.data.dataset", "Dataset")


def _has_class(dataset: Any, module: str, name: str) -> bool:
    return any(
        (each.__module__, each.__qualname__) == (module, name) for each in type(dataset).__mro__
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RayDatasetBatches:
    """The batches of one iteration over a Ray Dataset.

    A rank takes its part of each global batch, so all ranks have equal steps, and each sample
    belongs to one rank. An iterator of Ray, such as `get_dataset_shard` returns, is one rank's
    already.
    """

    dataset: Any
    batch_size: int  # samples a batch on this rank
    world: World
    shuffle: bool  # permute each window
    window: int | None  # its samples; None: those of 8 global batches
    drop_last: bool  # drop the tail that does not fill a global batch
    prefetch: int  # batches that Ray fetches ahead

    def of_epoch(self, seed: int, epoch: int) -> Iterator[ColumnBatch]:
        """Iterate over this rank's batches of an epoch."""
        world = self._sharers
        whole = self.batch_size * world.size
        batches = self._global_batches(whole, seed, epoch)
        if self.drop_last:
            batches = (batch for batch in batches if rows_of(batch) == whole)
        elif world.size > 1:
            batches = _with_tail_joined(batches, world.size)
        for batch in batches:
            rows = rows_of(batch)
            begin, end = (rows * rank // world.size for rank in (world.rank, world.rank + 1))
            yield {name: column[begin:end] for name, column in batch.items()}

    @property
    def shuffle_window(self) -> int:
        """Samples of a window; 0 where they are not shuffled."""
        rows = self.batch_size * self._sharers.size
        return max((self.window or _WINDOW_BATCHES * rows) // rows, 1) * rows if self.shuffle else 0

    @property
    def _sharers(self) -> World:
        """This rank's place among the ranks that share the dataset."""
        return self.world if _is_whole(self.dataset) else World()

    def count(self) -> int:
        """Return the number of batches of an epoch on each rank; TypeError where it is unknown."""
        # The public count() runs the whole dataset where the number is not known.
        samples = self.dataset._meta_count() if _is_whole(self.dataset) else None  # noqa: SLF001
        if samples is None:
            raise TypeError(
                "How many samples this Ray Dataset has is not known before it has run. Count "
                "batches as they come, or give the loader dataset.materialize()."
            )
        whole, left = divmod(samples, self.batch_size * self.world.size)
        return int(whole + (not self.drop_last and left >= (self.world.size if whole else 1)))

    def _global_batches(self, rows: int, seed: int, epoch: int) -> Iterator[ColumnBatch]:
        if not self.shuffle:
            yield from self._chunks(rows, self.prefetch)
            return
        # Not Ray's own shuffle: its result depends on how rows are spread over blocks, which varies
        # with the free cores, and so could differ from rank to rank.
        window = self.shuffle_window
        ahead = max(1, self.prefetch * rows // window)
        for number, chunk in enumerate(self._chunks(window, ahead)):
            generator = np.random.default_rng(batch_seed(seed, epoch, number))
            places = generator.permutation(rows_of(chunk))
            for begin in range(0, len(places), rows):
                chosen = places[begin : begin + rows]
                yield {name: column[chosen] for name, column in chunk.items()}

    def _chunks(self, rows: int, ahead: int) -> Iterator[ColumnBatch]:
        dataset = self.dataset
        if _is_whole(dataset):
            # Otherwise blocks come in the order they finish, different on each rank and run.
            dataset.context.execution_options.preserve_order = True
        return iter(
            dataset.iter_batches(batch_size=rows, batch_format="numpy", prefetch_batches=ahead)
        )


def check_ray_arguments(
    batches: RayDatasetBatches, given: Mapping[str, Any], *, single: bool
) -> None:
    """Raise UsageError for arguments that a Ray Dataset excludes; warn where ranks repeat work.

    Falsy arguments in `given` were not given.
    """
    for name, why in _REFUSED.items():
        if given[name]:
            raise UsageError(f"{name} and a Ray Dataset: {why}. Leave {name} out.")
    if single:
        raise UsageError(
            "batch_size=None and a Ray Dataset: its rows come in batches of columns. Give a number."
        )
    window = batches.window
    if window is not None and (window < 1 or not batches.shuffle):
        raise UsageError(f"window={window} and a Ray Dataset: 1 or more, and with shuffle=True.")
    if batches.world.size == 1:
        return
    if _is_whole(batches.dataset):
        warnings.warn(
            f"Each of {batches.world.size} ranks has Ray prepare this whole dataset, and takes its "
            "own part: a Ray program is one rank's. In Ray Train, give the loader "
            "ray.train.get_dataset_shard(...), which is prepared once for all ranks.",
            stacklevel=5,
        )
    elif _has_class(
        batches.dataset, "ray.data._internal.iterator.iterator_impl", "DataIteratorImpl"
    ):
        warnings.warn(
            f"Each of {batches.world.size} ranks is given all of this iterator of Ray's, so each "
            "sample comes to every rank. Split it: Dataset.streaming_split, or in Ray Train "
            "datasets_to_split; or give the loader the dataset itself.",
            stacklevel=5,
        )


def rows_of(columns: ColumnBatch) -> int:
    """Return the number of rows."""
    return len(next(iter(columns.values()))) if columns else 0


def _with_tail_joined(batches: Iterator[ColumnBatch], ranks: int) -> Iterator[ColumnBatch]:
    """Iterate over batches; a last one with fewer rows than ranks joins the one before it."""
    last: ColumnBatch | None = None
    for batch in batches:
        if last is None:
            last = batch
        elif rows_of(batch) < ranks:
            last = {name: _joined(last[name], batch[name]) for name in last}
        else:
            yield last
            last = batch
    if last is None:
        return
    if rows_of(last) < ranks:
        raise DatasetError(
            f"The Ray Dataset has {rows_of(last)} samples for {ranks} ranks: not every rank could "
            "have one. Use fewer ranks, or drop_last=True."
        )
    yield last


def _joined(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Return the rows of both; Ray stacks rows of one shape, and lists those of several."""
    if one.dtype != other.dtype or one.shape[1:] != other.shape[1:]:
        rows = np.empty(len(one) + len(other), object)
        for place, row in enumerate((*one, *other)):  # one by one: NumPy would stack them
            rows[place] = row
        return rows
    return np.concatenate([one, other])


def to_tensors(columns: ColumnBatch) -> dict[str, Any]:
    """Return columns as tensors; types that torch lacks become lists, dates stay arrays."""
    return {name: _to_tensor(column) for name, column in columns.items()}


def _to_tensor(column: Any) -> Any:
    if not isinstance(column, np.ndarray):
        return column
    if column.dtype.kind in _TENSOR_KINDS:
        # Ray's shared memory is read-only, and torch has no read-only tensors.
        return torch.from_numpy(column if column.flags.writeable else copy.copy(column))
    if column.dtype.kind == "O":  # rows of different shapes, texts, anything
        return [_to_tensor(value) for value in column]
    return column.tolist() if column.dtype.kind in "US" else column


_STOP_TIMEOUT_S = 5.0  # for Ray to stop


class RayExecutor(SingleBatchExecutor):
    """Returns the batches that Ray Data makes."""

    def __init__(self, batches: RayDatasetBatches) -> None:
        super().__init__()
        self._batches = batches
        self._thread_reader: _BatchThread | None = None
        self._pid = os.getpid()

    def start(self, loader_spec: LoaderSpec) -> None:
        """Have Ray begin an epoch."""
        super().start(loader_spec)
        columns = self._batches.of_epoch(loader_spec.seed, loader_spec.epoch)
        self._thread_reader = _BatchThread(columns, loader_spec.collate_fn or to_tensors)

    def next_made(
        self,
        timeout_s: float,
        on_room: Callable[[], None],  # noqa: ARG002 - there is room for one at a time
    ) -> BuiltBatch:
        """Return the next batch; raises as in `Executor`."""
        assert self._thread_reader is not None  # an iteration has been started
        batch, where = self._next_batch, f"rank {self._batches.world.rank}, Ray Data"
        try:
            taken = self._thread_reader.take(min(timeout_s, threading.TIMEOUT_MAX))
        except queue.Empty:
            raise LoaderTimeoutError(
                f"{where}: batch {batch} did not arrive within {timeout_s:g} s. Ray may wait for "
                "cores that others have, or for other ranks; `ray status` tells. Raise timeout_s "
                "if the work really takes that long."
            ) from None
        self._batch_specs.popleft()
        self._next_batch += 1
        if taken is None:
            return BuiltBatch(batch=batch, exhausted=True)
        if isinstance(taken, BatchFailure):
            raise taken.in_caller(where)
        rows, content = taken
        return BuiltBatch(batch=batch, content=content, samples=rows)

    def finish(self) -> None:
        """Stop Ray."""
        super().finish()
        if self._thread_reader is not None:
            self._thread_reader.leave()
            self._thread_reader = None

    @property
    def usable(self) -> bool:
        """Whether this process, not its parent, uses Ray here."""
        return os.getpid() == self._pid

    def close(self) -> None:
        """Stop Ray."""
        if self.usable:
            self.finish()


class _BatchThread:
    """A thread that fetches an epoch's batches from Ray, which may take any time for one."""

    def __init__(self, batches: Iterator[Any], collate: Callable[[Any], Any]) -> None:
        self._batches = batches
        self._collate = collate
        self._permits = threading.Semaphore(2)  # one for the script, one ahead
        self._stopped = False
        self._taken: queue.SimpleQueue[tuple[int, Any] | BatchFailure | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="headrace-ray", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float) -> tuple[int, Any] | BatchFailure | None:
        """Return a batch and its rows, a failure, or None at the end; raises Empty."""
        taken = self._taken.get(timeout=timeout_s)
        self._permits.release()
        return taken

    def leave(self) -> None:
        self._stopped = True
        self._permits.release()
        self._thread.join(_STOP_TIMEOUT_S)  # one that is stuck in Ray ends with the process

    def _run(self) -> None:
        try:
            while self._permits.acquire() and not self._stopped:
                columns = next(self._batches, None)
                if columns is None:
                    break
                self._taken.put((rows_of(columns), self._collate(columns)))
            self._taken.put(None)
        except Exception as error:  # noqa: BLE001 - any error is raised in the script
            self._taken.put(BatchFailure.of(error))
        finally:
            self._batches = iter(())  # Ray stops when its iterator is collected
