"""How often the probe samples stacks and times batches, so that it costs no more than its share.

A look at a thread takes ten microseconds where its code is at hand, and up to twenty times as long
where the processor has been at other things since, as it always has where all cores are full. So
what looks take is measured, and they are made as often as they may.

To time a call of a transform takes some 3 us, and more where caches hold what the batch is made of.
Where calls are short and many, fewer batches are timed, so that it takes no more than a share of
the time in which batches are made.
"""

from __future__ import annotations

from time import thread_time_ns
from typing import NamedTuple

SAMPLING_PERIOD_S = 1 / 50
DEEP_SAMPLING_PERIOD_S = 1 / 100
_LONGEST_PERIOD_S = 0.1
_SAMPLING_SHARE, _DEEP_SAMPLING_SHARE = 0.001, 0.006
"""Of a core. A host of N cores with N workers and a rank spends little more than that in all.
Where a look takes more than that share of the longest period, that period counts."""
_FULL_RATE_LOOKS = 500
"""So many looks come first as often as they can: a short run is seen as closely as that."""
_MEAN_OF_LOOKS = 50
"""What a look takes is the mean of about so many."""


class SamplingRate:
    """The pauses of one thread between its looks; asked by that thread alone."""

    def __init__(self) -> None:
        self._looks = 0
        self._cost_ns = 0.0
        self._before_ns: int | None = None

    def looked(self) -> None:
        """A look is done; waking up for it is part of it."""
        if self._before_ns is not None:
            self._looks += 1
            took_ns = thread_time_ns() - self._before_ns
            self._cost_ns += (took_ns - self._cost_ns) / min(self._looks, _MEAN_OF_LOOKS)

    def resting(self) -> None:
        """The thread is about to pause; what it did since it looked does not count."""
        self._before_ns = thread_time_ns()

    def pause_s(self, *, deep: bool) -> float:
        """Return how long to pause until the next look, in seconds."""
        period_s, share = (
            (DEEP_SAMPLING_PERIOD_S, _DEEP_SAMPLING_SHARE)
            if deep
            else (SAMPLING_PERIOD_S, _SAMPLING_SHARE)
        )
        if self._looks < _FULL_RATE_LOOKS:
            return period_s
        return min(max(self._cost_ns / 1e9 / share, period_s), _LONGEST_PERIOD_S)


_LEAST_OFTEN, _LEAST_OFTEN_EARLY = 512, 64
_EARLY_BATCHES = 256


class TimingBudget(NamedTuple):
    """How much may be spent on timing one kind of calls.

    Attributes:
        at_first: So many batches are timed, all of them; without any, the first batch is not.
        one_in: Batches to one that is timed, at least; in deep mode each may be timed.
        early_share: Of the time in which the first 256 batches are made, what timing may take: a
            short run is seen as closely as that.
        share: The same of later ones.
        deep_share: The same in deep mode.
    """

    at_first: int
    one_in: int
    early_share: float
    share: float
    deep_share: float


class TimingRate:
    """Counts the batches of one loader in this process.

    Args:
        effort: How much may be spent.

    Attributes:
        one_in: How many batches there are to one that is timed.
    """

    def __init__(self, effort: TimingBudget) -> None:
        self._effort = effort
        self.one_in = effort.one_in
        self._deep = False
        self._batches = 0
        self._timed: int | None = None  # the last one
        self._cost_share = 0.0  # of a batch that is timed, what timing takes

    def is_due(self, *, on: bool, deep: bool) -> bool:
        """Whether the batch that begins is to be timed; the very first warms up.

        Args:
            on: Whether anything is recorded at this moment.
            deep: Whether in deep mode.
        """
        self._batches += 1
        if deep != self._deep:
            self._deep = deep
            self._choose()
        if self._batches <= self._effort.at_first:
            return on
        if not on or self._batches < 2:
            return False
        if self._timed is not None and self._batches - self._timed < self.one_in:
            return False
        self._timed = self._batches
        return True

    def weigh(self, cost_share: float) -> None:
        """Choose anew, now that timing a batch took this share of making it."""
        self._cost_share = cost_share
        self._choose()

    def _choose(self) -> None:
        effort = self._effort
        fewest, share = (1, effort.deep_share) if self._deep else (effort.one_in, effort.share)
        least_often = _LEAST_OFTEN
        if not self._deep and self._batches <= _EARLY_BATCHES:
            share, least_often = effort.early_share, _LEAST_OFTEN_EARLY
        one_in = fewest
        while self._cost_share > share * one_in and one_in < least_often:
            one_in *= 2
        # A batch that took a little longer than the others changes nothing.
        if one_in > self.one_in or one_in * 4 <= self.one_in or self.one_in < fewest:
            self.one_in = one_in
