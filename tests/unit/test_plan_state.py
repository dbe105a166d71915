"""A state is small, survives JSON, and is refused where it does not fit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.core.errors import CheckpointError, DatasetError
from headrace.sampling import Plan, PlanState

STATE = PlanState(
    fingerprint="f" * 64, seed=2**64 - 1, epoch=10**6, position=10**12, lanes=128,
    window=10**9, global_batch=10**6, shuffle=True,
)  # fmt: skip


def test_it_survives_json_and_is_small():
    text = json.dumps(STATE.to_dict())

    assert len(text) < 1024
    assert PlanState.from_dict(json.loads(text)) == STATE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "version 99"),
        ({"version": None}, "version None"),
        ({"position": "7"}, "position missing, unknown or of the wrong type"),
        ({"position": True}, "position missing"),
        ({"shuffle": 1}, "shuffle missing"),
        ({"extra": 1}, "extra missing, unknown"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: dict[str, Any], message):
    with pytest.raises(CheckpointError, match=message):
        PlanState.from_dict(STATE.to_dict() | change)


def test_a_missing_field_is_named():
    entries = STATE.to_dict()
    del entries["window"]

    with pytest.raises(CheckpointError, match="window missing"):
        PlanState.from_dict(entries)


def test_another_dataset_is_refused():
    with pytest.raises(DatasetError, match="belongs to dataset f1, but this one is f2"):
        Plan.resume(state_of("f1"), fingerprint="f2", num_samples=100, shard_sizes=None)


def test_resuming_keeps_lanes_and_window_whatever_the_batch_is_now():
    sizes = [100] * 200
    plan = Plan(
        fingerprint="f1", num_samples=20_000, shard_sizes=sizes, seed=3, epoch=2, global_batch=100
    )
    assert plan.lanes == 50

    resumed = Plan.resume(
        plan.state_at(300), fingerprint="f1", num_samples=20_000, shard_sizes=sizes,
        global_batch=256,
    )  # fmt: skip

    assert (resumed.lanes, resumed.window, resumed.start) == (50, 128, 300)
    assert (resumed.seed, resumed.epoch, resumed.global_batch) == (3, 2, 256)
    assert sorted(resumed.batch(0, 0, 1).tolist()) == sorted(plan.samples(300, 556).tolist())


def state_of(fingerprint: str) -> PlanState:
    return Plan(
        fingerprint=fingerprint, num_samples=100, shard_sizes=None, seed=0, epoch=0, global_batch=10
    ).state_at(0)
