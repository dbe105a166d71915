"""The bounds of global batches, ranks' slices of them, and the share of shards a rank reads."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from headrace.sampling.lanes import ShardLanes
from headrace.sampling.permutation import Ints


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
