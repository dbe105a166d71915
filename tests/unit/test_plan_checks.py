"""Numbers that do not fit are refused, or warned of, with the numbers and the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.core.errors import UsageError
from headrace.sampling import Plan


def make_plan(**changes: Any) -> Plan:
    arguments: dict[str, Any] = {
        "fingerprint": "f1",
        "num_samples": 20_000,
        "shard_sizes": [100] * 200,
        "seed": 0,
        "epoch": 0,
        "global_batch": 256,
    }
    return Plan(**(arguments | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_samples": 0, "shard_sizes": None}, "has 0 samples"),
        ({"num_samples": 0, "shard_sizes": [0, 0]}, "has 0 samples"),
        ({"shard_sizes": []}, "shape \\(0,\\)"),
        ({"shard_sizes": [100] * 199}, "199 shard sizes sum to 19900, .* 20000 samples"),
        ({"shard_sizes": [-1, 20_001]}, "shard_sizes\\[0\\] is -1"),
        ({"shard_sizes": [100.0] * 200}, "whole numbers.*float64"),
        ({"shard_sizes": [[100] * 200]}, "shape \\(1, 200\\)"),
        ({"global_batch": 0}, "global_batch=0: it must be at least 1"),
        ({"global_batch": -8}, "global_batch=-8"),
        ({"lanes": 0}, "lanes=0"),
        ({"window": 0}, "window=0"),
        ({"epoch": -1}, "epoch=-1"),
        ({"start": -1}, "start=-1.*0 to 20000"),
        ({"start": 20_001}, "start=20001.*0 to 20000"),
    ],
)
def test_numbers_out_of_range_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        make_plan(**changes)


@pytest.mark.parametrize(
    ("global_batch", "world", "remedies"),
    [
        (256, 3, "global batch of 255 or 258, or a world size of 2 or 4"),
        (10, 64, "global batch of 64, or a world size of 10"),
        (7, 2, "global batch of 6 or 8, or a world size of 1 or 7"),
    ],
)
def test_a_world_that_does_not_divide_the_batch_is_refused(global_batch, world, remedies):
    plan = make_plan(global_batch=global_batch)

    for call in (
        lambda: plan.check(world),
        lambda: plan.num_batches(world),
        lambda: plan.batch(0, 0, world),
    ):
        with pytest.raises(
            UsageError, match=f"{world} does not divide .* {global_batch}.*{remedies}"
        ):
            call()


def test_fewer_samples_than_ranks_are_refused():
    plan = make_plan(num_samples=3, shard_sizes=[3], global_batch=8)

    with pytest.raises(UsageError, match=r"3 samples cannot be dealt to 4 ranks.*at most 3"):
        plan.check(4)


@pytest.mark.parametrize("world", [0, -2])
def test_a_world_has_ranks(world):
    with pytest.raises(UsageError, match="at least one rank"):
        make_plan().check(world)


@pytest.mark.parametrize(("g", "rank"), [(-1, 0), (79, 0), (0, 2), (0, -1)])
def test_a_batch_or_rank_that_does_not_exist_is_refused(g, rank):
    plan = make_plan()
    assert plan.num_batches(2) == 79

    with pytest.raises(UsageError, match=r"does not exist|rank="):
        plan.batch(g, rank, 2)


@pytest.mark.parametrize(("first", "last"), [(-1, 5), (5, 4), (0, 20_001)])
def test_positions_outside_the_epoch_are_refused(first, last):
    with pytest.raises(UsageError, match="0 to 20000"):
        make_plan().samples(first, last)


def test_fitting_numbers_give_no_warning():
    assert make_plan().check(8) == ()
    assert make_plan(global_batch=16).check(8) == ()
    assert make_plan(lanes=60).check(1) == ()


def test_lanes_that_do_not_fit_the_batch_are_reported_with_the_share():
    (warning,) = make_plan(lanes=60).check(8)

    assert "60 lanes and a global batch of 256 do not divide one another" in warning
    assert "instead of 12.5%" in warning
    assert "lanes=64" in warning


def test_a_batch_that_no_lane_count_fits_is_reported_with_batches_that_do():
    (warning,) = make_plan(global_batch=2 * 257).check(2)

    assert "64 lanes and a global batch of 514" in warning
    assert "A global batch of 512 or 576 fits" in warning


def test_more_ranks_than_lanes_are_reported():
    (warning,) = make_plan(lanes=4, window=10).check(64)

    assert "64 ranks share 4 lanes" in warning
    assert "instead of 1.6%" in warning


def test_going_on_in_the_middle_of_a_round_is_reported():
    (warning,) = make_plan(start=100).check(8)

    assert "position 100" in warning
    assert "The next epoch is not affected" in warning


def test_an_epoch_without_a_batch_is_reported():
    plan = make_plan(num_samples=100, shard_sizes=[100], drop_last=True)

    assert plan.num_batches(4) == 0
    (warning,) = plan.check(4)
    assert "100 samples are fewer than the global batch of 256" in warning


def test_a_rest_smaller_than_the_world_is_reported():
    plan = make_plan(start=19_997)

    assert plan.num_batches(8) == 0
    (warning, *_) = plan.check(8)
    assert "last 3 samples of the epoch are left out" in warning
    assert plan.num_batches(2) == 1


def test_the_end_of_an_epoch_is_no_reason_to_warn():
    plan = make_plan(num_samples=100, shard_sizes=None, start=100)

    assert plan.num_batches(8) == 0
    assert plan.check(8) == ()


def test_numpy_numbers_are_numbers():
    plan = make_plan(num_samples=np.int64(20_000), shard_sizes=np.full(200, 100, dtype=np.int32))

    assert plan.samples(0, 100).tolist() == make_plan().samples(0, 100).tolist()
