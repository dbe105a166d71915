"""Samples of a rank's slow steps, told apart from those of its usual ones.

Rows of `stacks` are of seconds, which hold slow and usual steps alike. Whether a step is slow is
known only at its end, so its samples wait for that.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

SLOW_FACTOR = 1.5
"""A step that takes so many times the usual is slow."""
_FEWEST_STEPS, _STEPS, _RENEWED_EVERY = 8, 64, 8
"""The usual time is the median of the last steps, renewed every few; the first ones wait for it."""
_MOST_WAITING = 20_000  # of a step of several minutes the rest is not told apart

_Keep = Callable[[], None]


class SlowStepSamples:
    """Keeps the samples of slow training steps: each by its own function, once its step ended."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, _Keep]] = deque()
        self._early: list[tuple[int, list[_Keep]]] = []  # the first steps: duration and samples
        self._walls_ns: deque[int] = deque(maxlen=_STEPS)
        self._slow_ns: float | None = None  # steps that take longer are slow
        self._steps = 0

    def forget(self) -> None:
        """Drop what waits: it belongs to a step that will not end here."""
        self._waiting.clear()
        self._early.clear()

    def sampled(self, at_ns: int, keep: _Keep) -> None:
        """Add a sample of a moment, later than those before; `keep` counts it to the slow steps."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append((at_ns, keep))

    def row_ended(self, start_ns: int, wall_ns: int, *, trains: bool) -> None:
        """Decide on the samples of a step, or of other time, that ended."""
        samples = []
        while self._waiting and self._waiting[0][0] <= start_ns + wall_ns:
            at_ns, keep = self._waiting.popleft()
            if at_ns > start_ns and trains:
                samples.append(keep)
        if not trains:
            return
        self._walls_ns.append(wall_ns)
        self._steps += 1
        if self._slow_ns is not None:
            self._decide(wall_ns, samples)
        else:
            self._early.append((wall_ns, samples))
        if self._steps >= _FEWEST_STEPS and self._steps % _RENEWED_EVERY == 0:
            self._slow_ns = SLOW_FACTOR * statistics.median(self._walls_ns)
            for early_ns, early in self._early:
                self._decide(early_ns, early)
            self._early.clear()

    def _decide(self, wall_ns: int, samples: list[_Keep]) -> None:
        if samples and self._slow_ns is not None and wall_ns >= self._slow_ns:
            for keep in samples:
                keep()
