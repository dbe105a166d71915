"""How samples are shuffled and cut into shards."""

from __future__ import annotations

import numpy as np

from headrace.data.shards.pack import shard_bounds, shuffled_rows, spread_rows


def test_the_order_of_a_seed_is_the_same_for_ever():
    # SplitMix64's published first outputs for seed 0: e220..., 6e78..., 06c4..., f88b..., 1b39...
    assert shuffled_rows(5, seed=0).tolist() == [2, 4, 1, 0, 3]
    assert shuffled_rows(10, seed=1).tolist() == shuffled_rows(10, seed=1).tolist()
    assert shuffled_rows(1000, seed=0).tolist() != shuffled_rows(1000, seed=1).tolist()


def test_shards_are_of_about_one_size():
    bounds = shard_bounds(np.full(1000, 100), 30_000)
    assert np.diff(bounds).tolist() == [250, 250, 250, 250]


def test_a_sample_larger_than_a_shard_leaves_no_empty_shard():
    bounds = shard_bounds(np.array([1, 1, 1000, 1]), 10)
    assert bounds[0] == 0
    assert bounds[-1] == 4
    assert (np.diff(bounds) > 0).all()


def test_looked_at_samples_are_spread():
    assert spread_rows(100, 4).tolist() == [0, 25, 50, 75]
    assert spread_rows(2, 4).tolist() == [0, 1]
