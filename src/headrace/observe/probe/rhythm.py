"""Which batches of a loader are timed, transform by transform: one in some.

To time a call takes some 3 us. Where transforms are short and many, fewer batches are timed, so
that it takes no more than half a per cent of the time in which the loader's batches are made.
"""

from __future__ import annotations

ONE_IN = 8  # batches
_LEAST_OFTEN = 64
_MOST_SHARE, _MOST_SHARE_DEEP = 0.005, 0.01  # of the time in which batches are made


class Rhythm:
    """Counts the batches of one loader in this process.

    Attributes:
        one_in: How many batches there are to one that is timed.
    """

    def __init__(self) -> None:
        self.one_in = ONE_IN
        self._deep = False
        self._batches = 0
        self._timed: int | None = None  # the last one
        self._cost_share = 0.0  # of a batch that is timed, what timing takes

    def is_due(self, *, on: bool, deep: bool) -> bool:
        """Whether the batch that begins is to be timed; the first is not, it warms up.

        Args:
            on: Whether anything is recorded at this moment.
            deep: Whether in deep mode.
        """
        self._batches += 1
        if deep != self._deep:
            self._deep = deep
            self._choose()
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
        fewest, share = (1, _MOST_SHARE_DEEP) if self._deep else (ONE_IN, _MOST_SHARE)
        one_in = fewest
        while self._cost_share > share * one_in and one_in < _LEAST_OFTEN:
            one_in *= 2
        # A batch that took a little longer than the others changes nothing.
        if one_in > self.one_in or one_in * 4 <= self.one_in or self.one_in < fewest:
            self.one_in = one_in
