"""Global batches: bounds, slices of ranks, shares of shards; the checks of a plan, and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import UsageError
from headrace.sampling.lanes import Ints, ShardLanes, lanes_for


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalBatches:
    """The rest of an epoch, cut into global batches.

    The tail is the samples after the last whole batch. It is dropped, or it is a batch of its own,
    or, if smaller than the world size, it joins the batch before it, so that every rank makes
    equally many steps and none gets an empty batch.
    """

    num_samples: int  # n, of the whole epoch
    start: int  # the position where batch 0 begins, 0 to n
    size: int  # B, samples
    drop_last: bool  # whether the tail is dropped

    @property
    def tail(self) -> int:
        """Samples after the last whole batch."""
        return (self.num_samples - self.start) % self.size

    def count(self, world: int) -> int:
        """Return the number of batches, the same for each rank."""
        whole = (self.num_samples - self.start) // self.size
        return whole + (not self.drop_last and self.tail >= world)

    def bounds(self, batch: int, world: int) -> tuple[int, int]:
        """Return the positions [first, last) of a batch."""
        first = self.start + batch * self.size
        joined = batch + 1 == self.count(world) and not self.drop_last
        return first, self.num_samples if joined else first + self.size

    def position_after(self, batch: int, world: int) -> int:
        """Return the position after a batch, n after the last one."""
        if batch + 1 >= self.count(world):
            return self.num_samples
        return self.start + (batch + 1) * self.size

    def left_out(self, world: int) -> int:
        """Return the number of samples that are in no batch."""
        count = self.count(world)
        last = self.bounds(count - 1, world)[1] if count else self.start
        return self.num_samples - last


def rank_slice(length: int, rank: int, world: int) -> slice:
    """Return a rank's slice of a batch of `length` samples; slices are as equal as possible."""
    return slice(length * rank // world, length * (rank + 1) // world)


def share_in_lanes(order: ShardLanes, batches: GlobalBatches, rank: int, world: int) -> float:
    """Return the share of the shards in the lanes that a rank draws from.

    A lane that the rank shares with others counts whole: over an epoch almost every shard of it
    gives the rank a sample.
    """
    lanes = order.lanes
    drawn = np.zeros(lanes.count, dtype=bool)
    # After this many batches the lanes of a batch repeat.
    cycle = lanes.count // gcd(batches.size, lanes.count)
    for batch in range(min(cycle, batches.count(world))):
        first, last = batches.bounds(batch, world)
        ordered = order.order_in_batch(np.arange(first, last, dtype=np.int64))
        drawn[ordered[rank_slice(last - first, rank, world)] % lanes.count] = True
    begins = lanes.begins[drawn].astype(np.int64)
    last_samples = begins + lanes.lengths[drawn].astype(np.int64) - 1
    steps = np.zeros(len(order.ends) + 1, dtype=np.int64)
    np.add.at(steps, order.shards_at(begins), 1)
    np.add.at(steps, order.shards_at(last_samples) + 1, -1)
    read = np.cumsum(steps[:-1]) > 0
    filled = np.diff(order.ends, prepend=0) > 0
    return float(np.mean(read[filled]))


def share_of_whole(shard_sizes: Ints | None, world: int) -> float:
    """Return the share of the shards a rank can expect in a permutation of all samples."""
    if shard_sizes is None:
        return 1 / world
    sizes = shard_sizes[shard_sizes > 0]
    return float(np.mean(1 - (1 - 1 / world) ** sizes.astype(np.float64)))


def share_in_dataset_order(
    shard_sizes: Ints | None, batches: GlobalBatches, rank: int, world: int
) -> float:
    """Return the share of the shards a rank reads where samples come in dataset order."""
    if shard_sizes is None:
        return 1 / world
    sizes = shard_sizes[shard_sizes > 0]
    mine = rank_slice(batches.size, rank, world)
    # In each batch the rank reads [begin, begin + length) of a period of one batch.
    stops = np.cumsum(sizes) - batches.start - mine.start
    starts, length = stops - sizes, mine.stop - mine.start
    last_batch = np.minimum((stops - 1) // batches.size, batches.count(world) - 1)
    read = (last_batch >= 0) & (last_batch * batches.size + length > starts)
    return float(np.mean(read))


_MOST_SAMPLES = 2**62


def check_counts(
    *,
    num_samples: int,
    global_batch: int,
    lanes: int | None,
    window: int | None,
    epoch: int,
    start: int,
) -> None:
    """Raise UsageError where a number of a plan is out of its range; None is always valid."""
    if not 1 <= num_samples <= _MOST_SAMPLES:
        raise UsageError(
            f"The dataset has {num_samples} samples; a plan needs 1 to {_MOST_SAMPLES}. "
            f"Look at it with `headrace data info`."
        )
    least = {"global_batch": (global_batch, 1), "lanes": (lanes, 1), "window": (window, 1)}
    for name, (number, smallest) in {**least, "epoch": (epoch, 0)}.items():
        if number is not None and number < smallest:
            raise UsageError(f"{name}={number}: it must be at least {smallest}.")
    if not 0 <= start <= num_samples:
        raise UsageError(
            f"start={start}: an epoch of {num_samples} samples has positions 0 to {num_samples}. "
            f"The state may belong to another dataset."
        )


def checked_shard_sizes(
    shard_sizes: Sequence[int] | NDArray[np.integer] | None, num_samples: int
) -> Ints | None:
    """Return the shard sizes as int64[shards], or None where every sample is its own shard.

    Raises UsageError if they are not whole numbers from 0 on whose sum is num_samples.
    """
    if shard_sizes is None:
        return None
    given = np.asarray(shard_sizes)
    if given.ndim != 1 or given.dtype.kind not in "iu" or given.size == 0:
        raise UsageError(
            f"shard_sizes must be a row of whole numbers, one for each shard; "
            f"it has shape {given.shape} and type {given.dtype}."
        )
    sizes = given.astype(np.int64, copy=False)
    if sizes.min() < 0:
        shard = int(sizes.argmin())
        raise UsageError(f"shard_sizes[{shard}] is {sizes[shard]}: a shard has 0 or more samples.")
    if int(sizes.sum()) != num_samples:
        raise UsageError(
            f"The {len(sizes)} shard sizes sum to {int(sizes.sum())}, but the dataset has "
            f"{num_samples} samples. Take both from the same index."
        )
    return None if len(sizes) == num_samples and sizes.min() == 1 else sizes


def check_world(batches: GlobalBatches, world: int) -> None:
    """Raise UsageError where the ranks cannot have equal parts of every batch."""
    num_samples, global_batch = batches.num_samples, batches.size
    if world < 1:
        raise UsageError(f"world={world}: there must be at least one rank.")
    if global_batch % world:
        raise UsageError(
            f"World size {world} does not divide the global batch of {global_batch}, so ranks "
            f"would get unequal parts. Use a global batch of {_near_multiples(global_batch, world)}"
            f", or a world size of {_near_divisors(global_batch, world)}."
        )
    if num_samples < world:
        raise UsageError(
            f"{num_samples} samples cannot be dealt to {world} ranks: each needs at least one. "
            f"Use a world size of at most {num_samples}, or more samples."
        )


def check_rank(rank: int, world: int) -> None:
    """Raise UsageError for a rank outside the world size."""
    if not 0 <= rank < world:
        raise UsageError(f"rank={rank} of world size {world}: a rank is 0 to {world - 1}.")


def _near_multiples(number: int, factor: int) -> str:
    below = number // factor * factor
    return " or ".join(str(near) for near in (below, below + factor) if near)


def _near_divisors(number: int, near: int) -> str:
    below = next(count for count in range(min(near, number), 0, -1) if number % count == 0)
    above = next((count for count in range(near, number + 1) if number % count == 0), None)
    return " or ".join(str(count) for count in (below, above) if count)


def tail_warning(batches: GlobalBatches, world: int) -> str | None:
    """Return a warning where a plan has samples, but no batch, left."""
    left_out = batches.left_out(world)
    if not left_out or batches.count(world):
        return None
    if batches.drop_last:
        return (
            f"No batch: {left_out} samples are fewer than the global batch of {batches.size}, and "
            f"drop_last=True drops them. Use drop_last=False, or a smaller batch."
        )
    return (
        f"The last {left_out} samples of the epoch are left out: they are fewer than the {world} "
        f"ranks, and there is no batch left for them to join. A world size of {left_out} or less "
        f"would use them."
    )


def lane_warning(batches: GlobalBatches, lanes: int, world: int, share: float) -> str | None:
    """Return a warning where each of several ranks reads more than its share of the shards.

    `share` is what a rank reads of them.
    """
    size = batches.size
    cost = f"so a rank reads {share:.1%} of the shards instead of {1 / world:.1%}"
    if size % lanes and lanes % size:
        return (
            f"{lanes} lanes and a global batch of {size} do not divide one another, {cost}. "
            f"{_remedy(size, lanes)}"
        )
    if batches.start % min(size, lanes):
        return (
            f"The epoch goes on at position {batches.start}, in the middle of a round of "
            f"{min(size, lanes)} lanes, {cost}. The next epoch is not affected."
        )
    if world > lanes:
        return (
            f"{world} ranks share {lanes} lanes, {cost}. lanes={world} would give each rank "
            f"shards of its own, from the next epoch on."
        )
    return None


def _remedy(size: int, lanes: int) -> str:
    fitting = lanes_for(size)
    if size % fitting == 0 or fitting % size == 0:
        return f"From the next epoch on, lanes={fitting} (the default) fits."
    return f"A global batch of {_near_multiples(size, lanes)} fits."
