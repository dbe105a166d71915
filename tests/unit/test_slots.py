"""Slots: lent with a batch, free again when its last view has died."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest

from headrace.data.loader.serialization import encode_batch
from headrace.data.loader.workers.shared_memory import SlotArena, SlotPool


@pytest.fixture
def pool() -> Iterator[SlotPool]:
    pool = SlotPool(2)
    yield pool
    pool.close()


def lend_batch(pool: SlotPool) -> dict[str, np.ndarray]:
    slot = pool.take()
    assert slot is not None
    arena = SlotArena(pool.descriptors[slot])
    batch: dict[str, np.ndarray] = pool.lend(slot, encode_batch({"x": np.arange(1000)}, arena))
    return batch


def test_a_slot_is_free_again_when_the_last_view_of_its_batch_has_died(pool: SlotPool):
    batch = lend_batch(pool)
    tail = batch["x"][990:]
    del batch
    assert pool.free_count() == 1
    assert tail.tolist() == list(range(990, 1000))
    del tail
    assert pool.free_count() == 2


def test_slots_that_are_lent_are_not_reclaimed_and_others_are(pool: SlotPool):
    batch = lend_batch(pool)
    assert pool.take() is not None  # of a worker that is no more
    assert pool.take() is None
    pool.reclaim()
    assert pool.free_count() == 1
    assert batch["x"].sum() == 499_500
    del batch
    assert {pool.take(), pool.take()} == {0, 1}


def test_no_python_runs_as_a_batch_dies_or_a_ctrl_c_there_would_be_lost(pool: SlotPool):
    batch = lend_batch(pool)
    called = []
    sys.setprofile(lambda frame, event, _: called.append((event, frame.f_code.co_name)))
    try:
        batch.clear()
    finally:
        sys.setprofile(None)
    assert pool.free_count() == 2
    assert [name for event, name in called if event == "call"] == []
