"""What share of the shards a rank reads in an epoch. Arithmetic over lanes; reads no samples."""

from __future__ import annotations

from math import gcd

import numpy as np
from numpy.typing import NDArray

from headrace.plan.batches import Batches, slice_of
from headrace.plan.epoch_order import ShardLanes
from headrace.plan.order import Ints


def share_in_lanes(order: ShardLanes, batches: Batches, rank: int, world: int) -> float:
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
        drawn[ordered[slice_of(last - first, rank, world)] % lanes.count] = True
    return _share_of_shards(order, drawn)


def share_of_whole(shard_sizes: Ints | None, world: int) -> float:
    """Return the share of the shards a rank can expect in a permutation of all samples."""
    if shard_sizes is None:
        return 1 / world
    sizes = shard_sizes[shard_sizes > 0]
    return float(np.mean(1 - (1 - 1 / world) ** sizes.astype(np.float64)))


def share_in_dataset_order(
    shard_sizes: Ints | None, batches: Batches, rank: int, world: int
) -> float:
    """Return the share of the shards a rank reads where samples come in dataset order."""
    if shard_sizes is None:
        return 1 / world
    sizes = shard_sizes[shard_sizes > 0]
    mine = slice_of(batches.size, rank, world)
    # In each batch the rank reads [begin, begin + length) of a period of one batch.
    stops = np.cumsum(sizes) - batches.start - mine.start
    starts, length = stops - sizes, mine.stop - mine.start
    last_batch = np.minimum((stops - 1) // batches.size, batches.count(world) - 1)
    read = (last_batch >= 0) & (last_batch * batches.size + length > starts)
    return float(np.mean(read))


def _share_of_shards(order: ShardLanes, drawn: NDArray[np.bool_]) -> float:
    lanes = order.lanes
    begins = lanes.begins[drawn].astype(np.int64)
    last_samples = begins + lanes.lengths[drawn].astype(np.int64) - 1
    steps = np.zeros(len(order.ends) + 1, dtype=np.int64)
    np.add.at(steps, order.shards_at(begins), 1)
    np.add.at(steps, order.shards_at(last_samples) + 1, -1)
    read = np.cumsum(steps[:-1]) > 0
    filled = np.diff(order.ends, prepend=0) > 0
    return float(np.mean(read[filled]))
