"""What reading would still take from a cache on local disk, or in order from shards.

Between two bounds, both of what the run read: at most what reading took in its fastest batches, and
at most what a slow local disk takes for as many bytes; at least what memory takes for them.
"""

from __future__ import annotations

import numpy as np

from headrace.observe.whatif.measured import Work

_FASTEST_PERCENT = 10
_DISK_BYTES_PER_S, _MEMORY_BYTES_PER_S = 200e6, 5e9
"""A network disk or an old SSD, read in order; and the page cache."""
_DISK_OPEN_NS, _MEMORY_OPEN_NS = 100e3, 10e3
"""Finding a sample there: an SSD's latency, and a few system calls."""


def reading_left_ns(work: Work, share: float) -> tuple[float, float]:
    """Return what reading would take a batch, at most and at least, in nanoseconds.

    Args:
        work: The batches that were made.
        share: The share of their making that waits for reads, 0 to 1.
    """
    wall = work.column("wall_ns")
    waiting = np.maximum(wall - work.column("cpu_ns"), 0.0)
    of_waiting = min(share * float(wall.sum()) / max(float(waiting.sum()), 1.0), 1.0)
    fastest = float(np.percentile(waiting, _FASTEST_PERCENT)) * of_waiting
    read_bytes, samples = (
        float(work.column("read_bytes").mean()),
        float(np.maximum(work.column("samples"), 1.0).mean()),
    )
    disk = read_bytes / _DISK_BYTES_PER_S * 1e9 + samples * _DISK_OPEN_NS
    memory = read_bytes / _MEMORY_BYTES_PER_S * 1e9 + samples * _MEMORY_OPEN_NS
    most = min(fastest, disk)
    return most, min(memory, most)
