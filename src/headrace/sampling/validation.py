"""The checks of a plan's numbers, and the warnings of what a valid plan costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import UsageError
from headrace.sampling.global_batches import GlobalBatches
from headrace.sampling.lanes import lanes_for
from headrace.sampling.permutation import Ints

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
