"""The plan of one epoch: which samples make batch g of rank r, and the state that resumes it.

Shards in a permuted order are cut into lanes, runs of samples that are read side by side; a lane is
cut into windows, within which samples are permuted. A global batch takes a sample of each lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import CheckpointError, DatasetError, UsageError
from headrace.sampling.global_batches import (
    GlobalBatches,
    check_counts,
    check_rank,
    check_world,
    checked_shard_sizes,
    lane_warning,
    rank_slice,
    share_in_dataset_order,
    share_in_lanes,
    share_of_whole,
    tail_warning,
)
from headrace.sampling.lanes import (
    EpochOrder,
    Ints,
    ShardLanes,
    WholePermutation,
    default_window,
    lanes_for,
    lay_out_shards,
)
from headrace.sampling.seeds import combine, text_key

STATE_VERSION = 1
"""Raised whenever the same numbers would give another order, or a field changes its meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanState:
    """The position in an epoch, valid at any world size, worker count and global batch size."""

    version: int = STATE_VERSION  # of the order's arithmetic; others are refused
    fingerprint: str  # the dataset's
    seed: int  # the user's
    epoch: int  # from 0
    position: int  # samples of this epoch that all ranks together have received
    lanes: int
    window: int  # in samples
    global_batch: int  # when the state was taken; it may change on resume
    shuffle: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name; under 1 KB as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> PlanState:
        """Return the state that `to_dict` wrote; raises CheckpointError for any other entries."""
        version = entries.get("version")
        if version != STATE_VERSION:
            raise CheckpointError(
                f"The loader state has version {version!r}, and this Headrace reads version "
                f"{STATE_VERSION}: the order would differ. Finish the epoch with the Headrace that "
                f"wrote it, or begin a new epoch without the state."
            )
        kinds = {field.name: _KINDS[str(field.type)] for field in fields(cls)}
        wrong = sorted(
            name
            for name in kinds.keys() | entries.keys()
            if name not in kinds or type(entries.get(name)) is not kinds[name]
        )
        if wrong:
            raise CheckpointError(
                f"The loader state does not fit: {', '.join(wrong)} missing, unknown or of the "
                f"wrong type. It must hold {', '.join(kinds)}, as state_dict() wrote them."
            )
        return cls(**entries)

    def check_dataset(self, fingerprint: str) -> None:
        """Raise DatasetError where the state belongs to another dataset."""
        if fingerprint != self.fingerprint:
            raise DatasetError(
                f"The loader state belongs to dataset {self.fingerprint}, but this one is "
                f"{fingerprint}. Open the dataset of that run, or begin a new epoch without the "
                f"state."
            )


_KINDS: dict[str, type] = {"int": int, "str": str, "bool": bool}

_BLOCK = 16384
"""Positions computed at once: their arrays fit in a core's second-level cache."""


class Plan:
    """The order of one epoch of one dataset, from a position on.

    A pure function of its arguments: any process that makes the same plan gets the same batches.
    Samples are numbered 0 to num_samples - 1, shard by shard in the order of the index. Memory is
    16 bytes a shard beyond `shard_sizes`, or none where the order is a permutation of the whole.

    Args:
        fingerprint: The dataset's; two datasets of one size get different orders.
        num_samples: How many samples the dataset has, at least 1.
        shard_sizes: Samples of each shard, in the order of the index; None where every sample is
            a shard of its own.
        seed: The user's seed; any integer.
        epoch: Counted from 0.
        global_batch: B, the samples that all ranks together take in one step.
        lanes: C, used unchanged. None: near 64, so that C divides B or B divides C. To continue
            an epoch pass its state's, whatever B is now (or use `Plan.resume`).
        window: W in samples, used unchanged. None: one mean shard, at least 128.
        shuffle: False: position p is sample p.
        drop_last: Whether the tail, samples that fill no global batch, is dropped. Otherwise it
            is a batch of its own, split as evenly as possible; one smaller than the world size
            joins the batch before it.
        start: The position at which batch 0 begins. 0 begins the epoch.

    Raises:
        UsageError: A number is out of its range, or shard_sizes do not sum to num_samples.
    """

    def __init__(
        self,
        *,
        fingerprint: str,
        num_samples: int,
        shard_sizes: Sequence[int] | NDArray[np.integer] | None,
        seed: int,
        epoch: int,
        global_batch: int,
        lanes: int | None = None,
        window: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        start: int = 0,
    ) -> None:
        check_counts(
            num_samples=num_samples,
            global_batch=global_batch,
            lanes=lanes,
            window=window,
            epoch=epoch,
            start=start,
        )
        sizes = checked_shard_sizes(shard_sizes, num_samples)
        if lanes is None:
            lanes = lanes_for(global_batch)
        if window is None:
            window = default_window(num_samples, num_samples if sizes is None else len(sizes))
        self.fingerprint = fingerprint
        self.num_samples = int(num_samples)
        self.seed = int(seed)
        self.epoch = int(epoch)
        self.global_batch = int(global_batch)
        self.lanes = int(lanes)
        self.window = int(window)
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.start = int(start)
        self._shard_sizes = sizes
        self._order = self._make_order()
        self._batches = GlobalBatches(
            num_samples=self.num_samples,
            start=self.start,
            size=self.global_batch,
            drop_last=drop_last,
        )

    @classmethod
    def resume(
        cls,
        state: PlanState,
        *,
        fingerprint: str,
        num_samples: int,
        shard_sizes: Sequence[int] | NDArray[np.integer] | None,
        global_batch: int | None = None,
        drop_last: bool = False,
    ) -> Plan:
        """Return the plan that continues from a state of this process or another.

        The other arguments are those of `Plan`, of the dataset that is open now. A `global_batch`
        of None is the state's: batches equal those of the uninterrupted epoch only if it is the
        same; each sample comes once in any case. DatasetError: the state is another dataset's.
        """
        state.check_dataset(fingerprint)
        return cls(
            fingerprint=fingerprint,
            num_samples=num_samples,
            shard_sizes=shard_sizes,
            seed=state.seed,
            epoch=state.epoch,
            global_batch=state.global_batch if global_batch is None else global_batch,
            lanes=state.lanes,
            window=state.window,
            shuffle=state.shuffle,
            drop_last=drop_last,
            start=state.position,
        )

    def check(self, world: int) -> tuple[str, ...]:
        """Return warnings for training at this world size, one text each.

        UsageError: it does not divide the global batch, or exceeds the number of samples. The
        message names the nearest numbers that work.
        """
        check_world(self._batches, world)
        warnings = [tail_warning(self._batches, world)]
        if isinstance(self._order, ShardLanes) and world > 1:
            share = self.shards_touched(world // 2, world)
            warnings.append(lane_warning(self._batches, self.lanes, world, share))
        return tuple(warning for warning in warnings if warning)

    def num_batches(self, world: int = 1) -> int:
        """Return the number of batches from `start` on, the same for every rank."""
        check_world(self._batches, world)
        return self._batches.count(world)

    def batch(self, g: int, rank: int, world: int) -> Ints:
        """Return the samples of rank `rank` in batch `g`: int64[k], k the same for each rank.

        Only in the last batch, where it holds a tail, may ranks differ, by one sample. Concatenated
        in rank order, the parts are the same global batch for every world size (except for a tail
        that is smaller than one of them). UsageError: there is no such batch, rank or world size.
        """
        check_world(self._batches, world)
        check_rank(rank, world)
        if not 0 <= g < self._batches.count(world):
            raise UsageError(
                f"Batch {g} does not exist: from position {self.start} on, the epoch has "
                f"{self._batches.count(world)} batches."
            )
        first, last = self._batches.bounds(g, world)
        ordered = self._order.order_in_batch(np.arange(first, last, dtype=np.int64))
        return self._order.samples_at(ordered[rank_slice(last - first, rank, world)])

    def samples(self, first: int, last: int) -> Ints:
        """Return the samples at positions [first, last) of the epoch: int64[last - first]."""
        if not 0 <= first <= last <= self.num_samples:
            raise UsageError(
                f"Positions {first} to {last}: an epoch has 0 to {self.num_samples}, in order."
            )
        found = np.arange(first, last, dtype=np.int64)
        for begin in range(0, len(found), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            found[block] = self._order.samples_at(found[block])
        return found

    def position_after(self, g: int, world: int = 1) -> int:
        """Return the position after batch `g`; num_samples after the last one.

        The world size matters at the end alone, where the tail may have joined the last batch.
        """
        check_world(self._batches, world)
        return self._batches.position_after(g, world)

    def state_at(self, position: int) -> PlanState:
        """Return the state of this epoch at a position, such as `position_after` gives."""
        return PlanState(
            fingerprint=self.fingerprint,
            seed=self.seed,
            epoch=self.epoch,
            position=int(position),
            lanes=self.lanes,
            window=self.window,
            global_batch=self.global_batch,
            shuffle=self.shuffle,
        )

    def shards_touched(self, rank: int, world: int) -> float:
        """Return the share of the shards, 0 to 1, that a rank reads from `start` to the end.

        About 1 / world where lanes keep ranks apart; near 1 where the dataset is permuted as one.
        """
        check_world(self._batches, world)
        check_rank(rank, world)
        if isinstance(self._order, ShardLanes):
            return share_in_lanes(self._order, self._batches, rank, world)
        if isinstance(self._order, WholePermutation):
            return share_of_whole(self._shard_sizes, world)
        return share_in_dataset_order(self._shard_sizes, self._batches, rank, world)

    def _make_order(self) -> EpochOrder:
        if not self.shuffle:
            return EpochOrder()
        key = combine(text_key(self.fingerprint), self.seed, self.epoch)
        longest_lane = -(-self.num_samples // self.lanes)
        if self._shard_sizes is None or longest_lane <= self.window:
            return WholePermutation(num_samples=self.num_samples, key=key)
        return lay_out_shards(
            shard_sizes=self._shard_sizes, lanes=self.lanes, window=self.window, key=key
        )
