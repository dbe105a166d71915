"""The index function is a bijection, of any domain, and looks random on small ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sampling import lanes, seeds
from headrace.sampling.lanes import permute

exact = settings(deadline=None)  # a busy machine is no counterexample
KEYS = st.integers(0, 2**64 - 1)


@exact
@given(size=st.integers(1, 3000), key=KEYS)
def test_it_is_a_bijection(size, key):
    image = permute(np.arange(size, dtype=np.uint64), size, key)

    assert np.array_equal(np.sort(image), np.arange(size))


@exact
@given(size=st.integers(1, 2**62), key=KEYS, data=st.data())
def test_images_of_a_huge_domain_are_distinct_and_inside(size, key, data):
    indices = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=50))

    image = permute(np.array(sorted(indices), dtype=np.uint64), size, key)

    assert len(set(image.tolist())) == len(indices)
    assert int(image.max()) < size


@exact
@given(st.lists(st.tuples(st.integers(1, 200), KEYS), min_size=1, max_size=8))
def test_domains_and_keys_can_differ_by_element(domains):
    index = np.concatenate([np.arange(size, dtype=np.uint64) for size, _ in domains])
    counts = [size for size, _ in domains]
    sizes = np.repeat(np.array(counts, dtype=np.uint64), counts)
    keys = np.repeat(np.array([key for _, key in domains], dtype=np.uint64), counts)

    together = permute(index, sizes, keys)

    alone = [permute(np.arange(size, dtype=np.uint64), size, key) for size, key in domains]
    assert np.array_equal(together, np.concatenate(alone))


def test_a_billion_is_permuted_by_arithmetic():
    size = 10**9
    indices = np.arange(0, size, size // 100_000, dtype=np.uint64)

    image = permute(indices, size, seeds.combine(7))

    assert len(np.unique(image)) == len(indices)
    # The mean of a uniform draw, within five standard errors.
    assert abs(image.mean() / size - 0.5) < 5 / np.sqrt(12 * len(indices))


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 12, 30])
def test_pairs_of_neighbours_go_everywhere(size):
    keys = lanes.mix64_array(np.arange(20_000, dtype=np.uint64))
    sizes = np.full(len(keys), size, dtype=np.uint64)
    first, second = (
        permute(np.full(len(keys), index, dtype=np.uint64), sizes, keys).astype(np.int64)
        for index in (0, 1)
    )

    counts = np.bincount(first * size + second, minlength=size * size)

    pairs = size * (size - 1)
    expected = len(keys) / pairs
    possible = counts.reshape(size, size)[~np.eye(size, dtype=bool)]
    noise = (pairs - 1) / len(keys)
    deviation = np.sqrt(max(np.mean((possible / expected - 1) ** 2) - noise, 0))
    assert deviation < 0.06


@exact
@given(st.integers(0, 2**64 - 1))
def test_the_array_hash_is_the_number_hash(value):
    assert int(lanes.mix64_array(np.array([value], dtype=np.uint64))[0]) == seeds.mix64(value)
