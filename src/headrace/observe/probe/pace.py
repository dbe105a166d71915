"""How often a thread looks at another, so that looking takes no more than a part of a core.

A look takes ten microseconds where its code is at hand, and up to twenty times as long where the
processor has been at other things since, as it always has where all cores are full. So what looks
take is measured, and they are made as often as they may.
"""

from __future__ import annotations

from time import thread_time_ns

PERIOD_S = 1 / 50
DEEP_PERIOD_S = 1 / 100
_LONGEST_PERIOD_S = 0.1
_SHARE, _DEEP_SHARE = 0.001, 0.006
"""Of a core. A host of N cores with N workers and a rank spends little more than that in all.
Where a look takes more than that share of the longest period, that period counts."""
_AT_FULL_PACE = 500
"""So many looks come first as often as they can: a short run is seen as closely as that."""
_AMONG = 50
"""What a look takes is the mean of about so many."""


class Pace:
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
            self._cost_ns += (took_ns - self._cost_ns) / min(self._looks, _AMONG)

    def resting(self) -> None:
        """The thread is about to pause; what it did since it looked does not count."""
        self._before_ns = thread_time_ns()

    def pause_s(self, *, deep: bool) -> float:
        """Return how long to pause until the next look, in seconds."""
        period_s, share = (DEEP_PERIOD_S, _DEEP_SHARE) if deep else (PERIOD_S, _SHARE)
        if self._looks < _AT_FULL_PACE:
            return period_s
        return min(max(self._cost_ns / 1e9 / share, period_s), _LONGEST_PERIOD_S)
