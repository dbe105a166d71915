"""The last seconds of a run, and how much was done a second in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.observe.whatif.tables import Floats

_LATE_FACTOR, _LATE_NS = 3.0, 2e9
_FEWEST = 3


@dataclass(frozen=True, slots=True)
class Window:
    """From when to when, by the host's monotonic clock in nanoseconds."""

    since_ns: int
    until_ns: int

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.until_ns - self.since_ns) / 1e9


def quiet_s(start: Floats, end: Floats, window: Window) -> float:
    """Return for how long nothing has come, where the next is late; 0 where it is not.

    It is late after three times what the longest took, and two seconds.

    Args:
        start: When each of things that are done one after the other began, in ns.
        end: When it ended, in ns.
        window: The last seconds.
    """
    if len(end) == 0:
        return 0.0
    since_ns = float(window.until_ns - end.max())
    late = since_ns > max(_LATE_FACTOR * float((end - start).max()), _LATE_NS)
    return since_ns / 1e9 if late else 0.0


def per_second(start: Floats, end: Floats, counts: Floats, window: Window) -> float:
    """Return how much was done a second.

    Of what began before the window, the part within it counts. Things that take longer than the
    window are looked at for as long as the last few took. What is under way is not known, so time
    counts up to the last end, or to the window's where the next is late.

    Args:
        start: When each of things that are done one after the other began, in ns.
        end: When it ended, in ns.
        counts: What it counts for: 1, or the samples in it.
        window: The last seconds.
    """
    if len(end) == 0:
        return 0.0
    began, ended = float(window.since_ns), float(end.max())
    if quiet_s(start, end, window):
        ended = float(window.until_ns)
    else:
        began = min(began, float(np.sort(start)[-_FEWEST:][0]))
    began = max(began, float(start.min()))
    inside = np.maximum(np.minimum(end, ended) - np.maximum(start, began), 0.0)
    done = float((inside / np.maximum(end - start, 1.0) * counts).sum())
    return done / max(ended - began, 1.0) * 1e9
