"""Seeds depend on (seed, epoch, sample) alone, are spread over 64 bits and do not meet."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.sampling.seeds import batch_seed, mix64, sample_seed, text_key


def test_the_mix_is_splitmix64():
    # The published first outputs of splitmix64 with state 0.
    golden = 0x9E3779B97F4A7C15
    assert [mix64(golden * step) for step in (1, 2, 3)] == [
        0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F,
    ]  # fmt: skip


def test_seeds_do_not_change_between_releases():
    assert sample_seed(0, 0, 0) == 0xB459B6526E855306
    assert sample_seed(7, 3, 123_456) == 0xCE9909A34F6F8E0D
    assert batch_seed(7, 3, 123_456) == 0x524FE0014F9553B4
    assert text_key("f1") == 0x8B3A3F1E9CB06161


@pytest.mark.parametrize("seed_of", [sample_seed, batch_seed])
def test_no_two_are_the_same(seed_of):
    seeds = {
        seed_of(seed, epoch, n) for seed in (0, 1, -1) for epoch in (0, 1) for n in range(2000)
    }

    assert len(seeds) == 3 * 2 * 2000
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_samples_and_batches_have_seeds_of_their_own():
    assert {sample_seed(0, 0, n) for n in range(1000)}.isdisjoint(
        batch_seed(0, 0, n) for n in range(1000)
    )


def test_every_bit_is_as_often_set_as_not():
    seeds = np.array([sample_seed(3, 1, n) for n in range(4000)], dtype=np.uint64)
    shares = [(((seeds >> np.uint64(bit)) & np.uint64(1)) == 1).mean() for bit in range(64)]

    assert np.abs(np.array(shares) - 0.5).max() < 5 * 0.5 / np.sqrt(4000)
