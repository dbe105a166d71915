"""How often the probe times batches and samples stacks, so that it takes a share of the time."""

from __future__ import annotations

import time
from random import Random
from typing import NamedTuple

_LEAST_OFTEN, _LEAST_OFTEN_EARLY = 512, 64
_EARLY_BATCHES = 256


class TimingBudget(NamedTuple):
    """Limits on the cost of timing one kind of calls: shares of the time of making batches."""

    at_first: int  # batches that are all timed; if 0, the very first is not
    one_in: int  # at least so many batches to one timed batch; 1 in deep mode
    early_share: float  # of the first 256 batches: a short run is seen closely
    share: float
    deep_share: float


class TimingRate:
    """Decides which batches of one loader in this process are timed: one in `one_in`."""

    def __init__(self, budget: TimingBudget) -> None:
        self._budget = budget
        self.one_in = budget.one_in
        self._deep = False
        self._batches = 0
        self._last_timed: int | None = None  # number of the last timed batch
        self._cost_share = 0.0  # of a timed batch, the share that timing took

    def is_due(self, *, on: bool, deep: bool) -> bool:
        """Return whether to time the batch that begins; the very first is for warm-up."""
        self._batches += 1
        if deep != self._deep:
            self._deep = deep
            self._choose()
        if self._batches <= self._budget.at_first:
            return on
        if not on or self._batches < 2:
            return False
        if self._last_timed is not None and self._batches - self._last_timed < self.one_in:
            return False
        self._last_timed = self._batches
        return True

    def weigh(self, cost_share: float) -> None:
        """Adapt the rate: timing the last timed batch took this share of making it."""
        self._cost_share = cost_share
        self._choose()

    def _choose(self) -> None:
        budget = self._budget
        fewest, share = (1, budget.deep_share) if self._deep else (budget.one_in, budget.share)
        least_often = _LEAST_OFTEN
        if not self._deep and self._batches <= _EARLY_BATCHES:
            share, least_often = budget.early_share, _LEAST_OFTEN_EARLY
        one_in = fewest
        while self._cost_share > share * one_in and one_in < least_often:
            one_in *= 2
        # Small differences between batches change nothing.
        if one_in > self.one_in or one_in * 4 <= self.one_in or self.one_in < fewest:
            self.one_in = one_in


SAMPLING_PERIOD_S = 1 / 50
DEEP_SAMPLING_PERIOD_S = 1 / 100
_LONGEST_PERIOD_S = 0.1
_SAMPLING_SHARE, _DEEP_SAMPLING_SHARE = 0.001, 0.006
"""Shares of a core. A host of N cores with N workers and a rank spends little more than that in
total. Where a sample costs more than that share of the longest period, the longest period
counts."""
_FULL_RATE_SAMPLES = 500
"""So many samples are taken at the full rate first, so that a short run is seen closely."""
_MEAN_OF_SAMPLES = 50
"""The cost of a sample is averaged over about so many."""


class SamplingRate:
    """The sampling rate of one thread; used by that thread alone."""

    def __init__(self) -> None:
        self._samples = 0
        self._cost_ns = 0.0
        self._before_ns: int | None = None
        self._random = Random()  # its own: the script's random numbers stay as they are

    def sample_taken(self) -> None:
        """Add the cost of a sample, including waking up for it."""
        if self._before_ns is not None:
            self._samples += 1
            took_ns = time.thread_time_ns() - self._before_ns
            self._cost_ns += (took_ns - self._cost_ns) / min(self._samples, _MEAN_OF_SAMPLES)

    def pause_began(self) -> None:
        """Begin a pause: what the thread did since the sample is not part of its cost."""
        self._before_ns = time.thread_time_ns()

    def pause_s(self, *, deep: bool) -> float:
        """Return the pause until the next sample, in seconds: half of the usual one to 1.5 times.

        With equal pauses the samples of steps that take about as long would all be of one moment:
        native code that holds the interpreter delays a sample, and so the next ones, to its end.
        """
        return self.usual_pause_s(deep=deep) * self._random.uniform(0.5, 1.5)

    def usual_pause_s(self, *, deep: bool) -> float:
        """Return the mean of the pauses, in seconds."""
        period_s, share = SAMPLING_PERIOD_S, _SAMPLING_SHARE
        if deep:
            period_s, share = DEEP_SAMPLING_PERIOD_S, _DEEP_SAMPLING_SHARE
        if self._samples < _FULL_RATE_SAMPLES:
            return period_s
        return min(max(self._cost_ns / 1e9 / share, period_s), _LONGEST_PERIOD_S)
