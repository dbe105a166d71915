"""An iterator of torch's DataLoader whose batches an executor makes.

The loader stays torch's, and so does the order: its sampler runs in the training process. Draws
from the global generators are seeded by (base seed, place in the order), not by worker, so the
batches are the same whichever worker makes them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import (
    DataLoader,
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
    default_collate,
    default_convert,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter

from headrace.core.errors import WorkerError
from headrace.core.world import World, current_world
from headrace.data.loader.batch_builder import LoaderSpec
from headrace.data.loader.executors.base import (
    Executor,
    IdleExecutors,
    RemoteWorkers,
    claim_executor,
)
from headrace.data.loader.executors.iterable import IterableExecutor
from headrace.data.loader.executors.process import ProcessExecutor
from headrace.data.loader.iteration import (
    BatchSpecs,
    BatchStream,
    DeviceTransfer,
    IterableBatchSpecs,
    IterationProgress,
    LoaderStats,
    SamplerBatchSpecs,
)
from headrace.data.loader.quarantine import BadSampleBudget, budget_name
from headrace.data.loader.workers.pool import modules_of
from headrace.sampling.seeds import combine

_USUAL_PREFETCH = 2  # torch's, for each worker

_SEEDS = 1 << 63  # torch draws base seeds below it

MakeRemoteWorkers = Callable[[World], RemoteWorkers | None]

_IDLE_EXECUTORS: WeakKeyDictionary[DataLoader[Any], IdleExecutors] = WeakKeyDictionary()


def unsupported_reason(loader: DataLoader[Any]) -> str | None:
    """Return why torch's own iterator must serve a loader, or None."""
    if isinstance(loader.dataset, (IterDataPipe, MapDataPipe)):
        return "its dataset is a data pipe, which torch's own workers know how to seed and share"
    return None


def is_iterable_loader(loader: DataLoader[Any]) -> bool:
    """Return whether a loader's dataset is iterated, not indexed."""
    return isinstance(loader.dataset, IterableDataset)


class ExecutorIterator(_BaseDataLoaderIter):
    """Iterates over a torch DataLoader with an executor instead of torch's workers.

    `make_remote_workers` returns the remote workers of a new executor, or None. Raises LoaderError
    where the dataset, its collate_fn or worker_init_fn cannot be sent to workers.
    """

    def __init__(self, loader: DataLoader[Any], make_remote_workers: MakeRemoteWorkers) -> None:
        super().__init__(loader)  # iterates the sampler and draws the base seed, as torch does
        self._loader = loader
        self._make_remote_workers = make_remote_workers
        self._epochs = 0
        self._begin()

    def _begin(self) -> None:
        loader, world, began_ns = self._loader, current_world(), time.monotonic_ns()
        if loader not in _IDLE_EXECUTORS:
            _IDLE_EXECUTORS[loader] = IdleExecutors(loader)
        idle = _IDLE_EXECUTORS[loader]
        loader_spec = _loader_spec_of(loader, world, self._worker_seed())
        executor = idle.start(lambda: self._new_executor(world), loader_spec)
        self._stream = BatchStream(
            IterationProgress(self._batch_specs(world)),
            executor,
            seed=0,
            feed=DeviceTransfer(None, None, pin_memory=self._pin_memory),
            budget=BadSampleBudget(
                budget_name("torch", world, loader.dataset), world, loader.dataset
            ),
            stats=LoaderStats(),
            timeout_s=self._timeout or float("inf"),
            on_end=functools.partial(idle.give_back, executor),
            is_taken=claim_executor(executor),
            began_ns=began_ns,
            survives_errors=True,
        )

    def _batch_specs(self, world: World) -> BatchSpecs:
        epoch = combine(int(self._base_seed), self._epochs)
        if is_iterable_loader(self._loader):
            return IterableBatchSpecs(epoch=epoch, rank=world.rank, world=world.size)
        return SamplerBatchSpecs(
            batches=self._sampler_iter,
            epoch=epoch,
            single=not self._auto_collation,
            rank=world.rank,
            world=world.size,
        )

    def _worker_seed(self) -> int:
        """Return the base seed of an iterable dataset's workers, as in torch.

        torch's workers restart with each epoch, also where they are persistent, and so do their
        draws.
        """
        if not self._epochs:
            return int(self._base_seed)
        return combine(int(self._base_seed), self._epochs) % _SEEDS

    def _new_executor(self, world: World) -> Executor:
        loader = self._loader
        workers = max(loader.num_workers, 1)
        kind = IterableExecutor if is_iterable_loader(loader) else ProcessExecutor
        return kind(
            workers,
            workers * (loader.prefetch_factor or _USUAL_PREFETCH),
            rank=world.rank,
            # With torch's collating, too: what is not imported before the fork, each worker would.
            modules=modules_of(loader.dataset, loader.collate_fn),
            remote_workers=self._make_remote_workers(world),
        )

    @property
    def batch_samples(self) -> int:
        """Samples in the batch delivered last."""
        return self._stream.batch_samples

    def take_order_ns(self) -> int:
        """Return the time spent in the sampler since the last call, in nanoseconds."""
        return self._stream.take_order_ns()

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:  # noqa: FBT001, FBT002 - torch's
        """Begin another epoch with persistent workers; the seed is not drawn again."""
        self._stream.end()
        super()._reset(loader, first_iter)
        self._epochs += 1
        self._begin()

    def _next_data(self) -> Any:
        try:
            return next(self._stream)
        except WorkerError as error:
            if error.__cause__ is None:
                raise
            # A script may expect its dataset's own type of error.
            error.__cause__.add_note(str(error))
            raise error.__cause__ from None

    def __reduce__(self) -> Any:
        """Pickle as None: a loader's dataset or functions may hold the iterator."""
        return type(None), ()


def _loader_spec_of(loader: DataLoader[Any], world: World, seed: int) -> LoaderSpec:
    usual = default_collate if loader.batch_sampler is not None else default_convert
    iterated = is_iterable_loader(loader)
    return LoaderSpec(
        dataset=loader.dataset,
        collate_fn=None if loader.collate_fn is usual else loader.collate_fn,
        iterable=iterated,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        worker_init_fn=loader.worker_init_fn,
        rank=world.rank,
        torch_seed=seed if iterated else None,
    )
