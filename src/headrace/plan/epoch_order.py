"""Which sample stands at which position of an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headrace.plan.lanes import Lanes, cut_lanes
from headrace.plan.order import Ints, permute
from headrace.plan.seeds import combine

_WHOLE, _SHARDS, _LANES = 1, 2, 3


class EpochOrder(Protocol):
    """The order of one epoch: a bijection of [0, num_samples) onto itself."""

    def samples_at(self, positions: Ints) -> Ints:
        """Return the dataset's sample number at each position: int64[k] to int64[k]."""
        ...

    def order_in_batch(self, positions: Ints) -> Ints:
        """Return a batch's positions in the order in which ranks take slices of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOrder:
    """Position p is sample p."""

    def samples_at(self, positions: Ints) -> Ints:
        """Return the positions."""
        return positions

    def order_in_batch(self, positions: Ints) -> Ints:
        """Return the positions."""
        return positions


@dataclass(frozen=True, slots=True, kw_only=True)
class WholePermutation:
    """One permutation of all samples: no locality, the best shuffle, no memory.

    Attributes:
        num_samples: The domain.
        key: Of this dataset, seed and epoch.
    """

    num_samples: int
    key: int

    def samples_at(self, positions: Ints) -> Ints:
        """Return the images of the positions."""
        indices = positions.astype(np.uint64)
        return permute(indices, self.num_samples, combine(self.key, _WHOLE)).view(np.int64)

    def order_in_batch(self, positions: Ints) -> Ints:
        """Return the positions: no rank is nearer to any of them than another."""
        return positions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardLanes:
    """Permuted shards, laid end to end, cut into lanes.

    Attributes:
        lanes: The lanes over the concatenation.
        ends: int64[shards], where each shard of the concatenation ends in it.
        shifts: int64[shards], what added to a place in the concatenation gives the sample there.
    """

    lanes: Lanes
    ends: Ints
    shifts: Ints

    def samples_at(self, positions: Ints) -> Ints:
        """Return the sample at each position."""
        found = self.lanes.find(positions)
        found += self.shifts[self.shards_at(found)]
        return found

    def shards_at(self, found: Ints) -> Ints:
        """Return which shard of the concatenation, in its order, holds each place of it."""
        return np.searchsorted(self.ends, found, side="right").astype(np.int64)

    def order_in_batch(self, positions: Ints) -> Ints:
        """Return the positions in the order of their lanes along the concatenation."""
        return self.lanes.order_by_place(positions)


def lay_out_shards(*, shard_sizes: Ints, lanes: int, window: int, key: int) -> ShardLanes:
    """Permute shards, lay them end to end and cut the result into lanes.

    Args:
        shard_sizes: int64[shards], samples of each shard in the order of the index.
        lanes: C.
        window: W in samples.
        key: Of this dataset, seed and epoch.
    """
    count = len(shard_sizes)
    numbers = np.arange(count, dtype=np.uint64)
    shards = permute(numbers, count, combine(key, _SHARDS)).view(np.int64)
    first_samples = np.cumsum(shard_sizes) - shard_sizes
    ends = np.cumsum(shard_sizes[shards])
    return ShardLanes(
        lanes=cut_lanes(
            num_samples=int(ends[-1]), lanes=lanes, window=window, key=combine(key, _LANES)
        ),
        ends=ends,
        shifts=first_samples[shards] - (ends - shard_sizes[shards]),
    )
