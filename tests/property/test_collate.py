"""Our collating is torch's, for every structure of plain samples, through any arena."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.utils.data import default_collate

from headrace.data.loader.collate import collate, column_for
from headrace.data.loader.serialization import decode_batch, encode_batch
from headrace.data.loader.workers.shared_memory import PlainArena, SlotArena, SlotPool
from sample_datasets import assert_same

ARRAYS = hnp.arrays(
    dtype=st.sampled_from([np.uint8, np.int16, np.int64, np.float32, np.float64, np.bool_]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, max_side=4),
)
LEAVES = st.one_of(
    ARRAYS,
    ARRAYS.map(lambda array: torch.from_numpy(np.array(array))),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.booleans(),
    st.text(max_size=5),
    st.binary(max_size=5),
)
SAMPLES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.text(max_size=3), inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=6,
)


@given(sample=SAMPLES, count=st.integers(1, 4))
def test_inline_equals_torch(sample: object, count: int):
    arena = PlainArena()
    structure = encode_batch(collate(iter([sample] * count), count, arena), arena)
    mine = decode_batch(structure, arena.value)
    assert_same(mine, default_collate([sample] * count))


@given(sample=SAMPLES, count=st.integers(1, 4))
def test_through_a_slot_equals_torch(sample: object, count: int):
    pool = SlotPool(1)
    arena = SlotArena(pool.descriptors[0])
    structure = encode_batch(collate(iter([sample] * count), count, arena), arena)
    assert_same(pool.lend(0, structure), default_collate([sample] * count))
    pool.close()


class Pair(NamedTuple):
    image: np.ndarray
    label: int


@given(image=ARRAYS, label=st.integers(-9, 9), count=st.integers(1, 4))
def test_a_named_tuple_stays_one_and_is_placed_like_others(
    image: np.ndarray, label: int, count: int
):
    sample, arena = Pair(image, label), PlainArena()
    column = column_for(sample, count, arena)  # raises for what torch's own collating has to take
    for row in range(count):
        column.add(row, sample)
    mine = decode_batch(encode_batch(column.result(), arena), arena.value)
    assert isinstance(mine, Pair)
    assert_same(mine, default_collate([sample] * count))


@given(batch=SAMPLES)
def test_any_batch_is_carried_as_it_is(batch: object):
    pool = SlotPool(1)
    arena = SlotArena(pool.descriptors[0])
    assert_same(pool.copy_out(0, encode_batch(batch, arena)), batch)
    pool.close()
