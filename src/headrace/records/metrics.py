"""Numbers that ranks printed, as `--metric` names them: lines of JSON in the run's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

METRICS_FILE = "metrics.jsonl"
STEP_GROUP = "step"
"""The group of a metric's expression that is the step's number."""
METRIC_COLUMNS = ("attempt", "source", "name", "value", "step", "time_s")
"""Attempt; the log it was printed to, such as rank-0; the metric; its value; the step's number, as
printed or else counted from 0; and when it was read, in seconds since 1970 (UTC)."""


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the values of a run, in the order in which they were printed.

    Args:
        run: The run's folder.
    """
    try:
        text = (run / METRICS_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    whole = text[: text.rfind("\n") + 1]  # the last line may be half-written
    return [json.loads(line) for line in whole.splitlines()]
