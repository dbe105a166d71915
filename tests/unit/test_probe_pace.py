"""Looks at a thread are as often as they may be: they take a part of a core, however slow."""

from __future__ import annotations

import time

import pytest

from headrace.observe.probe.pace import DEEP_PERIOD_S, PERIOD_S, Pace


def busy(cpu_us: int) -> None:
    end_ns = time.thread_time_ns() + cpu_us * 1000
    while time.thread_time_ns() < end_ns:
        pass


def paced(looks: int, cpu_us: int) -> Pace:
    pace = Pace()
    for _ in range(looks):
        pace.resting()
        busy(cpu_us)
        pace.looked()
        busy(50)  # what comes besides is no part of a look
    return pace


@pytest.mark.parametrize("cpu_us", [0, 300])
def test_the_first_looks_are_as_often_as_they_can_be(cpu_us: int):
    pace = paced(499, cpu_us)
    assert pace.pause_s(deep=False) == PERIOD_S
    assert pace.pause_s(deep=True) == DEEP_PERIOD_S


def test_quick_looks_stay_so():
    pace = paced(600, 0)
    assert pace.pause_s(deep=False) == PERIOD_S
    assert pace.pause_s(deep=True) == DEEP_PERIOD_S


def test_slow_looks_take_their_share_of_a_core_and_no_more():
    pace = paced(600, 120)
    assert 0.00012 / 0.002 <= pace.pause_s(deep=False) <= 0.0002 / 0.002
    assert 0.00012 / 0.006 <= pace.pause_s(deep=True) <= 0.0002 / 0.006


def test_a_thread_is_looked_at_some_times_a_second_whatever_that_takes():
    assert paced(501, 1500).pause_s(deep=False) == 0.1
