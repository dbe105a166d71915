"""What a plan gives in known cases; the general laws stand in tests/property."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import numpy as np
import pytest

from headrace.sampling import Plan


def make_plan(**changes: Any) -> Plan:
    arguments: dict[str, Any] = {
        "fingerprint": "f1",
        "num_samples": 1003,
        "shard_sizes": [100] * 10 + [3],
        "seed": 0,
        "epoch": 0,
        "global_batch": 8,
    }
    return Plan(**(arguments | changes))


def test_without_shuffle_samples_come_in_dataset_order():
    plan = make_plan(shuffle=False)

    assert plan.samples(0, 1003).tolist() == list(range(1003))
    assert plan.batch(1, 0, 2).tolist() == [8, 9, 10, 11]
    assert plan.batch(1, 1, 2).tolist() == [12, 13, 14, 15]


def test_a_tail_is_split_as_evenly_as_it_goes():
    plan = make_plan(num_samples=23, shard_sizes=None, shuffle=False)

    assert plan.num_batches(4) == 3
    assert [plan.batch(2, rank, 4).tolist() for rank in range(4)] == [
        [16], [17, 18], [19, 20], [21, 22],
    ]  # fmt: skip


def test_a_tail_smaller_than_the_world_joins_the_batch_before_it():
    plan = make_plan(shuffle=False)

    assert plan.num_batches(2) == 126
    assert plan.num_batches(4) == 125
    assert [plan.batch(124, rank, 4).tolist() for rank in range(4)] == [
        [992, 993], [994, 995, 996], [997, 998, 999], [1000, 1001, 1002],
    ]  # fmt: skip
    assert plan.position_after(124, 4) == 1003
    assert plan.position_after(124, 2) == 1000
    assert plan.position_after(125, 2) == 1003


def test_after_a_dropped_tail_the_epoch_is_over():
    plan = make_plan(drop_last=True)

    assert plan.num_batches(4) == 125
    assert plan.position_after(123, 4) == 992
    assert plan.position_after(124, 4) == 1003
    assert make_plan(drop_last=True, start=1003).num_batches(4) == 0


@pytest.mark.parametrize(
    "changes",
    [{"seed": 1}, {"epoch": 1}, {"fingerprint": "f2"}, {"lanes": 8, "window": 10}],
)
@pytest.mark.parametrize("lanes", [None, 4])
def test_whatever_the_order_depends_on_changes_it(changes, lanes):
    base = {"lanes": lanes, "window": 50}
    one, other = make_plan(**base), make_plan(**(base | changes))

    same = one.samples(0, 1003) == other.samples(0, 1003)

    # Two random permutations agree in one place on average; lanes hold only a few more together.
    assert same.sum() < 25


def test_a_dataset_that_fits_one_window_is_permuted_as_one():
    plan = make_plan(num_samples=8000, shard_sizes=[100] * 80, window=125)
    sequence = plan.samples(0, 8000)

    # With lanes a sample of lane l could stand at positions l, l + 64, ... alone.
    assert len(np.unique(np.flatnonzero(sequence < 100) % plan.lanes)) > 40
    correlation = np.corrcoef(sequence, np.arange(8000))[0, 1]
    assert abs(correlation) < 5 / np.sqrt(8000)


def test_shards_of_one_sample_are_as_no_shards():
    loose = make_plan(num_samples=5000, shard_sizes=None)
    ones = make_plan(num_samples=5000, shard_sizes=[1] * 5000)

    assert np.array_equal(loose.samples(0, 5000), ones.samples(0, 5000))
    assert loose.shards_touched(0, 8) == 1 / 8


def test_the_default_window_is_a_mean_shard_but_not_tiny():
    assert make_plan(num_samples=100_000, shard_sizes=[1000] * 100).window == 1000
    assert make_plan(num_samples=1000, shard_sizes=[10] * 100).window == 128
    assert make_plan(num_samples=1001, shard_sizes=[500, 501]).window == 501


def test_a_plan_travels_between_processes():
    plan = make_plan(lanes=4, window=30, start=16)

    copy = pickle.loads(pickle.dumps(plan))

    assert np.array_equal(copy.batch(3, 1, 2), plan.batch(3, 1, 2))
    assert copy.state_at(40) == plan.state_at(40)


@pytest.mark.parametrize(
    ("changes", "digest"),
    [
        ({}, "783adcd950713e31"),
        ({"lanes": 4, "window": 30}, "9b6715e56f12c29e"),
        ({"lanes": 12, "window": 7, "seed": 2**65 + 3, "epoch": 9}, "7ebbb86aba8b34a4"),
        ({"shard_sizes": None}, "783adcd950713e31"),
    ],
)
def test_the_order_is_the_one_that_states_were_saved_under(changes, digest):
    sequence = make_plan(**changes).samples(0, 1003).astype("<i8")

    # A change here breaks every saved state: raise STATE_VERSION with it.
    assert hashlib.blake2b(sequence.tobytes(), digest_size=8).hexdigest() == digest
