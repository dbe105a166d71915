"""Numbers that do not fit together, told with the numbers and with what would fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import UsageError
from headrace.plan.order import Ints

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
    """Raise UsageError where a number of a plan is out of its range; None is always inside."""
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

    Raises:
        UsageError: They are not whole numbers, one is negative, or their sum is not num_samples.
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


def check_world(*, num_samples: int, global_batch: int, world: int) -> None:
    """Raise UsageError where the ranks cannot have equal parts of every batch."""
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
    """Raise UsageError where there is no such rank."""
    if not 0 <= rank < world:
        raise UsageError(f"rank={rank} of world size {world}: a rank is 0 to {world - 1}.")


def _near_multiples(number: int, factor: int) -> str:
    below = number // factor * factor
    return " or ".join(str(near) for near in (below, below + factor) if near)


def _near_divisors(number: int, near: int) -> str:
    below = next(count for count in range(min(near, number), 0, -1) if number % count == 0)
    above = next((count for count in range(near, number + 1) if number % count == 0), None)
    return " or ".join(str(count) for count in (below, above) if count)
