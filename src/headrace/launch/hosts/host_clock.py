"""A host's clock beside this one's: what failed first on several hosts is told by one clock."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from headrace.launch.failure import RankFailure

_NEWS = 64  # about a minute's: a clock that drifts, or is set, is followed


class HostClock:
    """How far this host's clock is ahead of another's, by the news that came from there."""

    def __init__(self) -> None:
        self._ahead_s: deque[float] = deque(maxlen=_NEWS)

    def hear(self, told_s: float, now_s: float) -> None:
        """Take in one piece of news.

        Args:
            told_s: The other host's clock as it was told.
            now_s: This host's as it came.
        """
        self._ahead_s.append(now_s - told_s)

    def here(self, failure: RankFailure) -> RankFailure:
        """Return a failure over there, its times by this host's clock."""
        # The news that took least: others lay waiting, on either side.
        ahead_s = min(self._ahead_s, default=0.0)
        words_s = failure.last_words_s
        return replace(
            failure,
            seen_s=failure.seen_s + ahead_s,
            last_words_s=words_s + ahead_s if words_s else 0.0,
        )
