"""Records folders with their collector, and the death of a collector."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.records.collector import Collector
from headrace.records.reader import Records
from headrace.records.schema import RowLimits


def collector_of(run: Path, limits: RowLimits | None = None) -> Collector:
    """Return a collector of the records of a run's first attempt."""
    return Collector(Records(run, 1).folder, "here", limits or RowLimits())


def kill(collector: Collector) -> None:
    """Release what the kernel does when a collector's process is killed: lock and store."""
    collector.store.close()
    os.close(collector._lock)
