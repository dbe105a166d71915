"""Looks at a thread are as often as they may be: they take a part of a core, however slow."""

from __future__ import annotations

import pytest

from headrace.observe.probe.timing_rates import (
    DEEP_SAMPLING_PERIOD_S,
    SAMPLING_PERIOD_S,
    SamplingRate,
)


class Clock:
    """A thread's CPU time, which passes as a test says: a full host would add to a real one."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def busy(self, cpu_us: int) -> None:
        self.now_ns += cpu_us * 1000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("headrace.observe.probe.timing_rates.time.thread_time_ns", clock)
    return clock


def paced(clock: Clock, looks: int, cpu_us: int) -> SamplingRate:
    pace = SamplingRate()
    for _ in range(looks):
        pace.pause_began()
        clock.busy(cpu_us)
        pace.sample_taken()
        clock.busy(50)  # what comes besides is no part of a look
    return pace


@pytest.mark.parametrize("cpu_us", [0, 300])
def test_the_first_looks_are_as_often_as_they_can_be(clock: Clock, cpu_us: int):
    pace = paced(clock, 499, cpu_us)
    assert pace.usual_pause_s(deep=False) == SAMPLING_PERIOD_S
    assert pace.usual_pause_s(deep=True) == DEEP_SAMPLING_PERIOD_S


@pytest.mark.parametrize("cpu_us", [0, 20])
def test_quick_looks_stay_so(clock: Clock, cpu_us: int):
    pace = paced(clock, 600, cpu_us)
    assert pace.usual_pause_s(deep=False) == SAMPLING_PERIOD_S
    assert pace.usual_pause_s(deep=True) == DEEP_SAMPLING_PERIOD_S


def test_slow_looks_take_their_share_of_a_core_and_no_more(clock: Clock):
    pace = paced(clock, 600, 80)
    assert pace.usual_pause_s(deep=False) == pytest.approx(0.00008 / 0.001)
    assert pace.usual_pause_s(deep=True) == pytest.approx(0.00008 / 0.006)


def test_a_thread_is_looked_at_some_times_a_second_whatever_that_takes(clock: Clock):
    assert paced(clock, 501, 1500).usual_pause_s(deep=False) == 0.1


def test_pauses_differ_so_that_steps_of_like_length_are_sampled_at_all_their_moments(clock: Clock):
    pace = paced(clock, 1, 20)
    pauses = [pace.pause_s(deep=False) / SAMPLING_PERIOD_S for _ in range(2000)]
    assert 0.5 <= min(pauses) < 0.55
    assert 1.45 < max(pauses) <= 1.5
    assert sum(pauses) / len(pauses) == pytest.approx(1.0, abs=0.05)
    # Nor do their sums stay near multiples of the period: the moments of long runs differ.
    drift = [sum(pauses[:count]) - count for count in range(0, 2001, 100)]
    assert max(drift) - min(drift) > 2
