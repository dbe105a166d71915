"""Rows by the device's clock find their rows of `steps`, whatever was lost or numbered anew."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.records.data_frames import device_row_numbers

KEYS = st.tuples(
    st.integers(0, 1000), st.sampled_from(["train", "eval", "between"]), st.integers(0, 2**39)
)
FEW_KEYS = st.tuples(st.integers(0, 2), st.sampled_from(["train", "eval"]), st.integers(0, 3))


def rows(keys: list[tuple[int, str, int]]) -> dict[str, np.ndarray]:
    return {
        "rank": np.array([rank for rank, _, _ in keys], np.int64),
        "kind": np.array([kind for _, kind, _ in keys], object),
        "step": np.array([step for _, _, step in keys], np.int64),
    }


@given(st.lists(KEYS, unique=True), st.data())
def test_each_row_is_found_in_any_order_and_what_was_lost_is_not(
    keys: list[tuple[int, str, int]], data: st.DataObject
):
    there = data.draw(st.permutations(keys))[: data.draw(st.integers(0, len(keys)))]
    places = device_row_numbers(rows(keys), rows(there))
    assert places.tolist() == [there.index(key) if key in there else -1 for key in keys]


@given(st.lists(FEW_KEYS), st.lists(FEW_KEYS))
def test_rows_that_cannot_be_distinguished_count_as_lost(
    keys: list[tuple[int, str, int]], there: list[tuple[int, str, int]]
):
    places = device_row_numbers(rows(keys), rows(there))
    once, there_once = Counter(keys), Counter(there)
    for key, place in zip(keys, places.tolist(), strict=True):
        sure = once[key] == there_once[key] == 1
        assert place == (there.index(key) if sure else -1)
