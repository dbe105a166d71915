"""The order of a loader's batches: of a plan, of a given sampler, or of an iterable dataset."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from torch.utils.data import BatchSampler

from headrace.core.loader_hooks import LOADER_HOOKS
from headrace.core.world import World
from headrace.data.loader.arguments import dataset_shape
from headrace.data.loader.batch_specs import (
    BatchCount,
    BatchSpecs,
    IterableBatchSpecs,
    LoaderState,
    PlanBatchSpecs,
    SamplerBatchSpecs,
)
from headrace.data.loader.executors.base import Executor
from headrace.data.loader.executors.ray_data import RayDatasetBatches
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
            for warning in plan.check(self.world.size):
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
