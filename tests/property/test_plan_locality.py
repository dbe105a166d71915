"""A rank reads about its part of the shards, and the predicted share is what it reads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.sampling import Plan

exact = settings(deadline=None, max_examples=60)  # a busy machine is no counterexample


def share_read(plan: Plan, sizes: np.ndarray, rank: int, world: int) -> float:
    """Return the share of the shards that the samples of a rank really lie in."""
    shard_of = np.repeat(np.arange(len(sizes)), sizes)
    read = np.zeros(len(sizes), dtype=bool)
    for g in range(plan.num_batches(world)):
        read[shard_of[plan.batch(g, rank, world)]] = True
    return float(read[sizes > 0].mean())


def plan_over(sizes: np.ndarray, **arguments) -> Plan:
    return Plan(
        fingerprint="f1", num_samples=int(sizes.sum()), shard_sizes=sizes, seed=5, epoch=1,
        **arguments,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("global_batch", "world"),
    [(16, 2), (16, 8), (24, 4), (64, 8), (100, 2), (100, 4), (256, 2), (256, 8), (256, 64)],
)
def test_a_rank_reads_its_part_of_the_shards(global_batch, world):
    sizes = np.full(320, 51)
    plan = plan_over(sizes, global_batch=global_batch, window=51, drop_last=True)

    shares = [share_read(plan, sizes, rank, world) for rank in (0, world // 2, world - 1)]

    # A rank's lanes are one stretch of the concatenation: two shards more, those at its ends.
    # Where ranks do not divide the lanes (4 of 50), a rank shares the lanes at its ends as well.
    shared_lanes = 2 / plan.lanes if plan.lanes % world else 0
    assert max(shares) <= 1 / world + 2 / 320 + shared_lanes
    assert plan.check(world) == ()


@exact
@given(
    sizes=st.lists(st.integers(0, 40), min_size=30, max_size=80).filter(any).map(np.array),
    lanes=st.integers(1, 12),
    window=st.integers(1, 12),
    world=st.integers(1, 6),
    per_rank=st.integers(1, 8),
    data=st.data(),
)
def test_a_rank_reads_at_most_the_share_predicted(sizes, lanes, window, world, per_rank, data):
    plan = plan_over(
        sizes, global_batch=world * per_rank, lanes=lanes, window=window, drop_last=True
    )
    assume(plan.num_samples > max(world, lanes * window))
    rank = data.draw(st.integers(0, world - 1))

    assert share_read(plan, sizes, rank, world) <= plan.shards_touched(rank, world) + 1e-9


@exact
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=40).map(np.array),
    world=st.integers(1, 6),
    per_rank=st.integers(1, 8),
    data=st.data(),
)
def test_in_dataset_order_the_share_predicted_is_exact(sizes, world, per_rank, data):
    assume(sizes.sum() >= world * per_rank)
    plan = plan_over(sizes, global_batch=world * per_rank, shuffle=False, drop_last=True)
    rank = data.draw(st.integers(0, world - 1))

    assert share_read(plan, sizes, rank, world) == pytest.approx(plan.shards_touched(rank, world))


@pytest.mark.parametrize("world", [2, 5, 16])
def test_in_a_whole_permutation_the_share_predicted_is_the_mean(world):
    sizes = np.random.default_rng(2).integers(1, 30, size=400)
    plan = plan_over(sizes, global_batch=80, window=10**6)

    measured = np.mean([share_read(plan, sizes, rank, world) for rank in range(world)])

    assert measured == pytest.approx(plan.shards_touched(0, world), abs=0.03)
