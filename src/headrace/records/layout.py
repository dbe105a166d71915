"""Names of the files in a run folder: its records, and the metrics found in the ranks' output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORDS = "records"
RINGS = "rings"
PARQUET = ".parquet"
STORE = ".sqlite"
LOCK = ".lock"
LAST_WRITTEN_FILE = f"system{PARQUET}"
"""The Parquet file that is written last."""
_ATTEMPT_PREFIX = "attempt-"


def attempts_with_records(run: Path) -> list[int]:
    """Return the numbers of the attempts that have a folder of records, ascending."""
    folders = (run / RECORDS).glob(f"{_ATTEMPT_PREFIX}*")
    names = [path.name.removeprefix(_ATTEMPT_PREFIX) for path in folders]
    return sorted(int(name) for name in names if name.isdecimal())


def is_closed(folder: Path) -> bool:
    """Return whether a records folder has been closed; its store may still be there, too."""
    return (folder / LAST_WRITTEN_FILE).exists()


METRICS_FILE = "metrics.jsonl"
STEP_GROUP = "step"
"""The group of a metric's regular expression that matches the step's number."""
METRIC_COLUMNS = ("attempt", "source", "name", "value", "step", "time_s")
"""Attempt; the log it was printed to, such as rank-0; the metric; its value; the step's number, as
printed or else counted from 0; and when it was read, in seconds since 1970 (UTC)."""


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the values of a run's folder, in the order in which they were printed."""
    try:
        text = (run / METRICS_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    complete = text[: text.rfind("\n") + 1]  # the last line may be half-written
    return [json.loads(line) for line in complete.splitlines()]
