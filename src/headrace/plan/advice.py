"""What a user should know about a plan that works, but costs something they may not expect."""

from __future__ import annotations

from headrace.plan.batches import Batches
from headrace.plan.lanes import lanes_for


def tail_warning(batches: Batches, world: int) -> str | None:
    """Return a warning where a plan has samples left, but no batch at all."""
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


def lane_warning(batches: Batches, lanes: int, world: int, share: float) -> str | None:
    """Return a warning where ranks read more shards than their part.

    Args:
        batches: Of the plan.
        lanes: Its lane count.
        world: At least 2.
        share: The share of the shards that a rank reads.
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
    below = size // lanes * lanes
    near = " or ".join(str(batch) for batch in (below, below + lanes) if batch)
    return f"A global batch of {near} fits."
