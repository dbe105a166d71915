"""A plan of 10^9 samples takes memory for its shards, not for its samples."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.sampling import Plan

SAMPLES = 10**9


def peak_bytes(work: Callable[[], Any]) -> tuple[Any, int]:
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def make_plan(shard_sizes: np.ndarray | None) -> Plan:
    return Plan(
        fingerprint="f1", num_samples=SAMPLES, shard_sizes=shard_sizes, seed=0, epoch=0,
        global_batch=1024, start=SAMPLES // 2,
    )  # fmt: skip


def test_without_shards_it_takes_none():
    plan, made = peak_bytes(lambda: make_plan(None))
    batch, used = peak_bytes(lambda: plan.batch(10_000, 3, 8))

    assert made < 20_000
    assert used < 100_000
    assert len(batch) == 128


def test_with_shards_it_takes_bytes_per_shard():
    shards = 100_000
    sizes = np.full(shards, SAMPLES // shards)

    plan, made = peak_bytes(lambda: make_plan(sizes))
    _, used = peak_bytes(lambda: plan.batch(10_000, 3, 8))
    share, counted = peak_bytes(lambda: plan.shards_touched(3, 8))

    assert made < 200 * shards
    assert used < 100_000
    assert counted < 100 * shards
    assert abs(share - 1 / 8) < 0.001
