"""Which batches are timed: in the first ones more may be spent on it than later."""

from __future__ import annotations

import pytest

from headrace.observe.probe.timing_rates import TimingBudget, TimingRate

EFFORT = TimingBudget(at_first=0, one_in=8, early_share=0.01, share=0.001, deep_share=0.02)
EARLY = 256


def timed(rhythm: TimingRate, batches: int, cost_share: float, *, deep: bool = False) -> list[int]:
    """Return which of so many batches are timed, where timing one takes that share of it."""
    found = []
    for number in range(batches):
        if rhythm.is_due(on=True, deep=deep):
            found.append(number)
            rhythm.weigh(cost_share)
    return found


@pytest.mark.parametrize(
    ("cost_share", "early", "later"), [(0.005, 8, 8), (0.02, 8, 32), (0.3, 32, 512), (20, 64, 512)]
)
def test_less_is_spent_once_many_batches_were_seen(cost_share: float, early: int, later: int):
    rhythm = TimingRate(EFFORT)
    timed(rhythm, EARLY, cost_share)
    assert rhythm.one_in == early
    found = timed(rhythm, 4 * 512, cost_share)
    assert rhythm.one_in == later
    assert found[-1] - found[-2] == later


def test_deep_recording_looks_closer_while_it_lasts():
    rhythm = TimingRate(EFFORT)
    timed(rhythm, 2 * EARLY, 0.02)
    assert timed(rhythm, 8, 0.02, deep=True) == [*range(8)]
    timed(rhythm, 2 * EARLY, 0.02)
    assert rhythm.one_in == 32


def test_all_of_the_first_batches_may_be_timed():
    rhythm = TimingRate(EFFORT._replace(at_first=20))
    assert timed(rhythm, 20, 5.0) == [*range(20)]
    assert not any(rhythm.is_due(on=False, deep=False) for _ in range(600))
