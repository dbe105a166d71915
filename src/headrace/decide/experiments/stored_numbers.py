"""Numbers as MLflow's stores have them, which keep neither NaN nor infinity in a column."""

from __future__ import annotations

import math
import sys

_LARGEST = sys.float_info.max
"""MLflow has this in the place of infinity, and its negative in that of minus infinity."""


def logged_number(stored: float | None) -> float:
    """Return the number that was logged, of what a store has; None: NaN."""
    if stored is None:
        return math.nan
    return math.copysign(math.inf, stored) if abs(stored) >= _LARGEST else stored
