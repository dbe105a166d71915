"""Lane counts near 64, and lanes that lie evenly over the concatenation."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.sampling.lanes import cut_lanes, lanes_for, places_of_lanes


@pytest.mark.parametrize(
    ("global_batch", "lanes"),
    [(1, 64), (16, 64), (64, 64), (256, 64), (4096, 64), (10, 80), (24, 48), (33, 66), (48, 48),
     (100, 50), (192, 64), (96, 48), (127, 127), (202, 101), (1000, 50)],
)  # fmt: skip
def test_lanes_divide_the_batch_or_are_divided_by_it(global_batch, lanes):
    assert lanes_for(global_batch) == lanes
    assert global_batch % lanes == 0 or lanes % global_batch == 0


@pytest.mark.parametrize("global_batch", [131, 257, 514])
def test_where_nothing_near_fits_there_are_64(global_batch):
    assert lanes_for(global_batch) == 64


@pytest.mark.parametrize("global_batch", range(1, 129))
def test_lanes_drawn_together_lie_in_equal_parts(global_batch):
    lanes = lanes_for(global_batch)
    places = places_of_lanes(lanes)

    assert sorted(places) == list(range(lanes))
    if lanes % global_batch == 0:
        for drawn in places.reshape(-1, global_batch):
            parts = np.sort(drawn) // (lanes // global_batch)
            assert parts.tolist() == list(range(global_batch))


@pytest.mark.parametrize(
    ("num_samples", "lanes"), [(1000, 64), (64, 64), (130, 64), (7, 3), (9, 1)]
)
def test_a_lane_has_every_lanes_th_position(num_samples, lanes):
    cut = cut_lanes(num_samples=num_samples, lanes=lanes, window=5, key=1)

    assert cut.lengths.tolist() == [len(range(lane, num_samples, lanes)) for lane in range(lanes)]
    along = np.argsort(cut.places)
    assert np.array_equal(np.cumsum(cut.lengths[along])[:-1], cut.begins[along][1:])


def test_a_window_keeps_its_samples():
    window = 10
    cut = cut_lanes(num_samples=4000, lanes=8, window=window, key=3)
    for lane in range(8):
        found = cut.find(np.arange(lane, 4000, 8)) - int(cut.begins[lane])
        edges = range(window - int(cut.offsets[lane]), 500, window)
        for part, inside in zip(
            np.split(found, edges), np.split(np.arange(500), edges), strict=True
        ):
            assert sorted(part) == inside.tolist()


def test_lanes_begin_their_windows_in_different_places():
    cut = cut_lanes(num_samples=64_000, lanes=64, window=50, key=3)

    assert len(set(cut.offsets.tolist())) > 25
    assert int(cut.offsets.max()) < 50
