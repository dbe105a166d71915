"""An order that a session has, from when it comes until its batch is sent."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True, eq=False)
class SessionOrder:
    """What a rank asked for.

    Attributes:
        ask: Its number.
        payload: The pickled `Order`.
        strand: Of an iterable dataset: which worker's it is.
        slot: Where its batch is made; -1 until a worker is to make it.
        deaths: How many workers ended at it.
        came_ns: When it came, by this host's monotonic clock.
        begun_ns: When a worker took it.
    """

    ask: int
    payload: bytes
    strand: int
    slot: int = -1
    deaths: int = 0
    came_ns: int = field(default_factory=time.monotonic_ns)
    begun_ns: int = 0
