"""`headrace.DataLoader`: torch's arguments, a planned order, and a pool of workers."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, ParamSpec

import torch
from torch.utils.data import BatchSampler

from headrace.core.loader_hooks import LOADER_HOOKS
from headrace.core.warning_frames import skipped_by_warnings
from headrace.core.world import World, current_world
from headrace.data.loader.arguments import (
    batch_sizes,
    check_exclusive,
    check_executor,
    check_world_unchanged,
    checked_lanes,
    dataset_shape,
    draw_seed,
    is_iterable,
    resolve_prefetch,
    resolve_workers,
    whole_number,
)
from headrace.data.loader.batch_builder import LoaderSpec
from headrace.data.loader.executors.base import (
    Executor,
    IdleExecutors,
    InlineExecutor,
    RemoteWorkers,
    claim_executor,
)
from headrace.data.loader.executors.iterable import IterableExecutor
from headrace.data.loader.executors.process import ProcessExecutor
from headrace.data.loader.executors.ray_data import (
    RayDatasetBatches,
    RayExecutor,
    check_ray_arguments,
    is_ray_dataset,
)
from headrace.data.loader.iteration import (
    BatchCount,
    BatchSpecs,
    BatchStream,
    DeviceTransfer,
    IterableBatchSpecs,
    IterationProgress,
    LoaderState,
    LoaderStats,
    PlanBatchSpecs,
    SamplerBatchSpecs,
    state_from_dict,
    state_to_dict,
)
from headrace.data.loader.quarantine import BadSampleBudget, budget_name
from headrace.data.loader.workers.pool import modules_of
from headrace.sampling.plan import Plan, PlanState


class BatchOrder:
    """The base of `DataLoader`: its batches and their number, by its arguments."""

    dataset: Any
    is_ray_dataset: bool
    iterable: bool
    batch_size: int
    global_batch: int
    world: World
    seed: int
    shuffle: bool
    drop_last: bool
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    num_workers: int
    prefetch_batches: int
    _single: bool
    _lanes: int | None
    _window: int | None
    _executor_given: Executor | None

    def __len__(self) -> int:
        """Return the number of batches of an epoch on this rank; TypeError where it is unknown."""
        if self._planned:
            return self._plan(0).num_batches(self.world.size)
        if self.is_ray_dataset:
            return self._ray_batches().count()
        if self.iterable:
            samples = len(self.dataset)  # TypeError where the dataset has no length, as in torch
            return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)
        return len(self._given_batches())  # type: ignore[arg-type]  # TypeError, as in torch

    @property
    def _planned(self) -> bool:
        return not self.iterable and self.sampler is None and self.batch_sampler is None

    def _plan(self, epoch: int) -> Plan:
        fingerprint, samples, shard_sizes = dataset_shape(self.dataset)
        return Plan(
            fingerprint=fingerprint,
            num_samples=samples,
            shard_sizes=shard_sizes,
            seed=self.seed,
            epoch=epoch,
            global_batch=self.global_batch,
            lanes=self._lanes,
            window=self._window,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
        )

    def _batch_specs(self, state: LoaderState | None, epoch: int) -> BatchSpecs:
        """Return the batch specs of an epoch, from where it is resumed."""
        place = {"rank": self.world.rank, "world": self.world.size}
        if isinstance(state, PlanState):
            fingerprint, samples, shard_sizes = dataset_shape(self.dataset)
            plan = Plan.resume(
                state,
                fingerprint=fingerprint,
                num_samples=samples,
                shard_sizes=shard_sizes,
                global_batch=self.global_batch,
                drop_last=self.drop_last,
            )
            for warning in self._plan_warnings(plan):
                warnings.warn(warning, stacklevel=4)  # the line of `iter(loader)`
        elif self._planned:
            plan = self._plan(epoch)
        else:
            start = 0 if state is None else state.position
            if self.iterable:
                return IterableBatchSpecs(epoch=epoch, start=start, **place)
            batches = self._given_batches()
            return SamplerBatchSpecs(
                batches=batches, epoch=epoch, start=start, single=self._single, **place
            )
        return PlanBatchSpecs(plan=plan, single=self._single, **place)

    def _plan_warnings(self, plan: Plan) -> Iterator[str]:
        """Yield what a plan costs at this world size."""
        world = self.world.size
        yield from plan.check(world)
        specs = PlanBatchSpecs(plan=plan, rank=self.world.rank, world=world, single=self._single)
        if specs.left_out:
            yield (
                f"{specs.left_out} of the samples are left out of each epoch: {world} ranks take "
                "one a step (batch_size=None), and make equally many steps. With batch_size=1 all "
                "come, in batches."
            )

    def _given_batches(self) -> Iterable[Any]:
        if self.batch_sampler is not None:
            return self.batch_sampler
        assert self.sampler is not None  # _planned is False and the dataset is not iterable
        if self._single:
            return self.sampler
        return BatchSampler(self.sampler, self.batch_size, self.drop_last)

    def _ray_batches(self) -> RayDatasetBatches:
        return RayDatasetBatches(
            dataset=self.dataset,
            batch_size=self.batch_size,
            world=self.world,
            shuffle=self.shuffle,
            window=self._window,
            drop_last=self.drop_last,
            prefetch=self.prefetch_batches,
        )

    def _count(self, epoch: int, position: int) -> BatchCount:
        """Return the state after `position` batches of a sampler or an iterable dataset."""
        return BatchCount(
            epoch=epoch,
            position=position,
            seed=self.seed,
            world=self.world.size,
            batch_size=self.batch_size,
            workers=self._shared_among if self.iterable else 0,
            shuffled=self._ray_batches().shuffle_window if self.is_ray_dataset else 0,
        )

    @property
    def _shared_among(self) -> int:
        """The number of workers that share an iterable dataset."""
        if self._executor_given is not None:
            return max(self._executor_given.workers, 1)
        remote = 0
        if LOADER_HOOKS.executors is not None and not self.is_ray_dataset:
            remote = LOADER_HOOKS.executors.remote_partitions(self)
        return max(self.num_workers, 1) + remote


_P = ParamSpec("_P")


def _hooked(construct: Callable[_P, None]) -> Callable[_P, None]:
    """Return a constructor that calls what is registered for loaders around `construct`."""

    @functools.wraps(construct)
    @skipped_by_warnings
    def __init__(*args: _P.args, **kwargs: _P.kwargs) -> None:  # noqa: N807 - as the wrapped one
        call: Callable[..., None] = construct
        if LOADER_HOOKS.override is not None:
            call = partial(LOADER_HOOKS.override, call)
        if LOADER_HOOKS.loaders is not None:
            call = partial(LOADER_HOOKS.loaders.construct, call)
        call(*args, **kwargs)

    return __init__


class DataLoader(BatchOrder):
    """Batches of a dataset in a computed order, made by whichever worker is free.

    Takes `torch.utils.data.DataLoader`'s arguments with their meaning, for any map-style or
    iterable dataset. Without a sampler the plan decides which sample goes into which batch of which
    rank, from the dataset's fingerprint, the seed, the epoch and the global batch size alone; so
    the state is a position, and resuming is exact at any world size and number of workers. Batches
    are the same, bit for bit, for any number of workers, for map-style datasets that draw from
    Python's, NumPy's and torch's global generators.

    Each `iter(loader)` begins the next epoch; the first one after `load_state_dict` continues where
    the state was taken.

    Args:
        dataset: Map-style (`__getitem__`, `__len__`) or iterable; or a Ray Dataset, or an iterator
            of one, whose batches are its columns as a dict of tensors.
        batch_size: Samples a batch on this rank; None yields single samples, uncollated, of which
            a tail smaller than the world size is left out, with a warning.
        shuffle: Shuffle differently each epoch.
        seed: Decides the order and every sample's random draws.
        num_workers: Worker processes; 0 makes batches inline; "auto" takes this rank's share of
            the host's cores, for an iterable dataset one.
        drop_last: Drop the tail that does not fill a global batch, instead of splitting it.
        collate_fn: List of samples to batch; torch's `default_collate` by default. For a Ray
            Dataset: a batch's columns, as NumPy arrays, to batch.
        sampler: Yields this rank's indices, used unchanged; excludes `shuffle`.
        batch_sampler: Yields this rank's lists of indices, used unchanged.
        prefetch_batches: Batches made ahead; two a worker by default.
        device: Where tensors are moved, asynchronously on CUDA.
        global_batch: Samples a batch over all ranks, fixed across world sizes; excludes
            `batch_size`.
        device_transform: Called with each batch on its device, its generators seeded by batch.
        executor: "processes", or an object with the methods of `Executor`.
        rank, world: This rank and the world size; by default of the process group or torchrun.
        timeout_s: Longest wait for one batch, in seconds.
        lanes: How many samples in a row come from different parts of the dataset; about 64.
        window: Samples of a lane that are shuffled together; about one shard by default. For a Ray
            Dataset, 8 global batches by default.
        worker_init_fn: Called with the worker's number when a worker starts.
        prefetch_factor: torch's spelling of `prefetch_batches`: batches ahead for each worker.
        timeout: torch's spelling of `timeout_s`; 0 leaves it.
        generator: torch's spelling of `seed`: the seed is drawn from it.
        pin_memory: Deliver tensors in pinned memory, where there is CUDA.
        persistent_workers: Accepted; workers live until the dataset changes.
        multiprocessing_context: Accepted; workers are forked from a small server in any case.
        in_order: Accepted; batches come in order in any case, and no worker waits for it.
        pin_memory_device: Accepted; tensors are pinned for the current device, as in newer torch.

    Raises:
        UsageError: Arguments that exclude one another, or numbers that do not fit.
    """

    is_local_only = False  # no remote workers from now on, in copies of the loader neither

    @_hooked
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        *,
        shuffle: bool = False,
        seed: int = 0,
        num_workers: int | Literal["auto"] = "auto",
        drop_last: bool = False,
        collate_fn: Callable[[Any], Any] | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        prefetch_batches: int | None = None,
        device: torch.device | str | None = None,
        global_batch: int | None = None,
        device_transform: Callable[[Any], Any] | None = None,
        executor: Literal["processes"] | Executor = "processes",
        rank: int | None = None,
        world: int | None = None,
        timeout_s: float = 120.0,
        lanes: int | None = None,
        window: int | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        prefetch_factor: int | None = None,
        timeout: float = 0,
        generator: torch.Generator | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = True,  # noqa: ARG002 - these four are torch's, for a script
        multiprocessing_context: Any = None,  # noqa: ARG002 - that changes its import alone
        in_order: bool = True,  # noqa: ARG002
        pin_memory_device: str = "",  # noqa: ARG002
    ) -> None:
        self.dataset, self.is_ray_dataset = dataset, is_ray_dataset(dataset)
        self.iterable = self.is_ray_dataset or is_iterable(dataset)
        self.shuffle, self.drop_last = shuffle, drop_last
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.collate_fn, self.worker_init_fn = collate_fn, worker_init_fn
        self.timeout_s = timeout or timeout_s
        self.seed = whole_number("seed", seed) if generator is None else draw_seed(generator)
        self.world = current_world(rank, world)
        self._is_placed = rank is not None  # by the caller, not by the process group
        check_exclusive(
            iterable=self.iterable and not self.is_ray_dataset,
            shuffle=shuffle,
            drop_last=drop_last,
            sampler=sampler,
            batch_sampler=batch_sampler,
            sizes=(batch_size, global_batch),
        )
        check_executor(executor, self.timeout_s)
        self._single = batch_size is None and global_batch is None and batch_sampler is None
        self.batch_size, self.global_batch = batch_sizes(batch_size, global_batch, self.world)
        most = 0 if self.is_ray_dataset else 1 if self.iterable else None
        self.num_workers = resolve_workers(num_workers, self.world, most)
        ahead = prefetch_batches, prefetch_factor
        self.prefetch_batches = resolve_prefetch(*ahead, self.num_workers)
        (self._lanes, self._window), self.pin_memory = checked_lanes(lanes, window), pin_memory
        self._feed = DeviceTransfer(device, device_transform, pin_memory=pin_memory)
        self._executor_given = None if isinstance(executor, str) else executor
        self._get_ready()

    def _get_ready(self) -> None:
        self._budget_name = budget_name("loader", self.world, self.dataset)
        self._stats = LoaderStats()
        self._epoch = 0  # of the current iteration, or of the next one
        self._progress: IterationProgress | None = None  # of the newest iteration
        self._resumed: LoaderState | None = None
        self._idle = IdleExecutors(self)
        if self._planned:
            for warning in self._plan_warnings(self._plan(0)):
                warnings.warn(warning, stacklevel=4)  # the script's line, below `_hooked`
        if self.is_ray_dataset:
            names = ("sampler", "batch_sampler", "num_workers", "worker_init_fn")
            given = {name: getattr(self, name) for name in names}
            given |= {"lanes": self._lanes, "executor": self._executor_given}
            check_ray_arguments(self._ray_batches(), given, single=self._single)
        if self.num_workers and self._executor_given is None:
            # Early, so that the first batch is soon there.
            self._idle.executors.append(self._registered_executor())

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch, or continue from a loaded state."""
        observer = LOADER_HOOKS.loaders
        if observer is None:
            return self._begin_iteration()
        iterator: Iterator[Any] = observer.iterate(DataLoader._begin_iteration, self)
        return iterator

    def _begin_iteration(self) -> BatchStream:
        began_ns = time.monotonic_ns()
        if not self._is_placed:
            check_world_unchanged(self.world)
        state, epoch = self._resumed, self.epoch
        if state is None and self._progress is not None and not self._progress.finished:
            epoch += 1  # that iteration was abandoned: the next one is another epoch
        executor, loader_spec = self._executor_given, self._loader_spec(epoch)
        if executor is not None:  # its owner closes it
            executor.start(loader_spec)
            on_end = executor.finish
        else:
            executor = self._idle.start(self._registered_executor, loader_spec)
            on_end = partial(self._idle.give_back, executor)
        self._resumed, self._epoch = None, epoch
        self._progress = IterationProgress(self._batch_specs(state, epoch))
        return BatchStream(
            self._progress,
            executor,
            seed=self.seed,
            feed=self._feed,
            budget=BadSampleBudget(f"{self._budget_name}/{epoch}", self.world, self.dataset),
            stats=self._stats,
            timeout_s=self.timeout_s,
            on_end=on_end,
            is_taken=claim_executor(executor),
            began_ns=began_ns,
        )

    @property
    def epoch(self) -> int:
        """The current epoch; before the first and between epochs, the next one."""
        if self._resumed is not None:
            return self._resumed.epoch
        return self._epoch + (self._progress is not None and self._progress.finished)

    def state_dict(self) -> dict[str, Any]:
        """Return this loader's state: under 1 KB, valid at any world size and worker count.

        Inside the loop it covers the batches delivered so far, the one just received included.
        After the loop it is the start of the next epoch.
        """
        return state_to_dict(self._state())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Make the next iteration continue where `state_dict()` was taken.

        CheckpointError: the state is damaged, or of a loader of another kind. DatasetError: of
        another dataset.
        """
        state = state_from_dict(state_dict, planned=self._planned)
        if isinstance(state, PlanState):
            state.check_dataset(dataset_shape(self.dataset)[0])
        else:
            state.check_same(self._count(state.epoch, state.position))
        self.seed = state.seed
        self._resumed = state

    def stats(self) -> LoaderStats:
        """Return the running counts of batches and samples delivered and of the time waited."""
        return self._stats

    def _state(self) -> LoaderState:
        if self._resumed is not None:
            return self._resumed
        current = None
        if self._progress is not None and not self._progress.finished:
            current = self._progress
        position = current.position() if current is not None else 0
        if current is not None and isinstance(current.specs, PlanBatchSpecs):
            return current.specs.plan.state_at(position)
        if self._planned:
            return self._plan(self.epoch).state_at(0)
        return self._count(self.epoch, position)

    @property
    def resumed_count(self) -> BatchCount | None:
        """The state that the next iteration continues from, where that counts batches."""
        return self._resumed if isinstance(self._resumed, BatchCount) else None

    def _loader_spec(self, epoch: int) -> LoaderSpec:
        return LoaderSpec(
            dataset=self.dataset,
            collate_fn=self.collate_fn,
            iterable=self.iterable,
            batch_size=None if self._single else self.batch_size,
            drop_last=self.drop_last,
            seed=self.seed,
            epoch=epoch if self.iterable else 0,
            rank=self.world.rank,
            worker_init_fn=self.worker_init_fn,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without processes: a copied or unpickled loader starts its own."""
        state = {name: value for name, value in self.__dict__.items() if name != "_idle"}
        return {**state, "_progress": None, "_resumed": self._state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state; executors are created when they are needed."""
        self.__dict__.update(state)
        self._idle = IdleExecutors(self)

    def _registered_executor(self) -> Executor:
        if self.is_ray_dataset:  # Ray makes its batches
            return RayExecutor(self._ray_batches())
        factory = LOADER_HOOKS.executors
        executor: Executor = self.new_executor() if factory is None else factory.new_executor(self)
        return executor

    def new_executor(self, remote_workers: RemoteWorkers | None = None) -> Executor:
        """Return a new executor with workers on this host, and these remote ones."""
        if self.num_workers == 0 and remote_workers is None:
            return InlineExecutor(self.world.rank)
        kind = IterableExecutor if self.iterable else ProcessExecutor
        return kind(
            max(self.num_workers, 1),
            self.prefetch_batches,
            rank=self.world.rank,
            modules=modules_of(self.dataset, self.collate_fn),
            remote_workers=remote_workers,
        )
