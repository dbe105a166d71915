"""A short stall is still seen when many values are pooled into few columns."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.report.charts.base import busy_shares, group_offsets, pool_groups, pool_intervals

VALUES = st.lists(st.floats(0, 1e9), min_size=1, max_size=300).map(np.array)
MOST = st.integers(1, 60)


@st.composite
def intervals(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Intervals one after the other, some with gaps, and columns over all of them."""
    lengths = draw(st.lists(st.integers(1, 10**9), min_size=1, max_size=80))
    gaps = draw(st.lists(st.integers(0, 10**8), min_size=len(lengths), max_size=len(lengths)))
    begin = np.cumsum(np.array(gaps) + np.append(0, lengths[:-1])).astype(np.float64)
    end = begin + np.array(lengths)
    shares = st.lists(st.floats(0, 1), min_size=len(lengths), max_size=len(lengths))
    edges = np.linspace(begin[0], end[-1], draw(MOST) + 1)
    return begin, end, np.array(draw(shares)), edges


@given(VALUES, MOST)
def test_groups_are_few_and_hold_every_value_once(values, most):
    starts = group_offsets(len(values), most)
    assert len(starts) <= most
    assert starts[0] == 0
    sizes = np.diff(np.append(starts, len(values)))
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1
    assert sizes.sum() == len(values)


@given(VALUES, MOST, st.data())
def test_the_longest_wait_survives_wherever_it_is(values, most, data):
    values[data.draw(st.integers(0, len(values) - 1))] = 2e9
    starts = group_offsets(len(values), most)
    assert pool_groups(values, starts, "max").max() == 2e9
    assert pool_groups(-values, starts, "min").min() == -2e9
    means = pool_groups(values, starts, "mean")
    sizes = np.diff(np.append(starts, len(values)))
    np.testing.assert_allclose((means * sizes).sum(), values.sum())


@given(intervals())
def test_the_worst_moment_survives_however_short(drawn):
    begin, end, values, edges = drawn
    assert np.nanmin(pool_intervals(begin, end, values, edges, "min")) == values.min()
    assert np.nanmax(pool_intervals(begin, end, values, edges, "max")) == values.max()


@given(intervals())
def test_a_mean_lies_between_the_extremes_and_a_column_is_known_where_an_interval_is(drawn):
    begin, end, _, edges = drawn
    low, mean, high = (pool_intervals(*drawn, how) for how in ("min", "mean", "max"))
    known = np.isfinite(mean)
    assert (low[known] <= mean[known] + 1e-6).all()
    assert (mean[known] <= high[known] + 1e-6).all()
    reached = [((begin < right - 1) & (end > left + 1)).any() for left, right in pairwise(edges)]
    assert np.isfinite(high)[np.array(reached)].all()


@given(intervals())
def test_busy_time_is_neither_lost_nor_made(drawn):
    begin, end, _, edges = drawn
    shares = busy_shares(begin, end, edges)
    assert np.nanmin(shares) >= 0
    assert np.nanmax(shares) <= 1
    np.testing.assert_allclose(
        np.nansum(shares * np.diff(edges)), (end - begin).sum(), rtol=1e-6, atol=1
    )


def test_what_overlaps_is_busy_once():
    shares = busy_shares(np.array([0.0, 2.0]), np.array([4.0, 4.0]), np.array([0.0, 4.0, 8.0]))
    assert shares[0] == 1
    assert np.isnan(shares[1])
