"""Which batches are timed, call by call: one in some.

To time a call takes some 3 us, and more where caches hold what the batch is made of. Where calls
are short and many, fewer batches are timed, so that it takes no more than a share of the time in
which batches are made.
"""

from __future__ import annotations

from typing import NamedTuple

_LEAST_OFTEN, _LEAST_OFTEN_EARLY = 512, 64
_EARLY = 256


class Effort(NamedTuple):
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


class Rhythm:
    """Counts the batches of one loader in this process.

    Args:
        effort: How much may be spent.

    Attributes:
        one_in: How many batches there are to one that is timed.
    """

    def __init__(self, effort: Effort) -> None:
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
        if not self._deep and self._batches <= _EARLY:
            share, least_often = effort.early_share, _LEAST_OFTEN_EARLY
        one_in = fewest
        while self._cost_share > share * one_in and one_in < least_often:
            one_in *= 2
        # A batch that took a little longer than the others changes nothing.
        if one_in > self.one_in or one_in * 4 <= self.one_in or self.one_in < fewest:
            self.one_in = one_in
