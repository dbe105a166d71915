"""Names of the files in a run folder: its records, and the metrics found in the ranks' output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3

RECORDS = "records"
RINGS = "rings"
PARQUET = ".parquet"
STORE = ".sqlite"
LOCK = ".lock"
PARTS_FOLDER = ".parts"
LAST_WRITTEN_FILE = f"system{PARQUET}"
"""The Parquet file that is written last."""
FILE_MODE = 0o644
"""Of files from which a live run is read. A run's folder is its user's alone; a user whom it
is opened to reads all of it, and takes its lock for a moment to see whether the run goes on."""
_ATTEMPT_PREFIX = "attempt-"


def attempts_with_records(run: Path) -> list[int]:
    """Return the numbers of the attempts that have a folder of records, ascending."""
    folders = (run / RECORDS).glob(f"{_ATTEMPT_PREFIX}*")
    names = [path.name.removeprefix(_ATTEMPT_PREFIX) for path in folders]
    return sorted(int(name) for name in names if name.isdecimal())


def latest_records(run: Path) -> Path | None:
    """Return the records folder of a run's latest attempt that has one; None: none has."""
    numbers = attempts_with_records(run)
    return run / RECORDS / f"{_ATTEMPT_PREFIX}{numbers[-1]}" if numbers else None


def is_closed(folder: Path) -> bool:
    """Return whether a records folder has been closed; its store may still be there, too."""
    return (folder / LAST_WRITTEN_FILE).exists()


def part_files(connection: sqlite3.Connection, path: Path, name: str) -> Iterator[Path]:
    """Yield the files of a table's parts, the oldest rows first; `path` is the store's file."""
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'parts'").fetchone()
    if known is None:  # a store of an older version
        return
    rows = connection.execute("SELECT number FROM parts WHERE name = ? ORDER BY number", (name,))
    for (number,) in rows.fetchall():
        yield part_file(path, name, number)


def part_file(path: Path, name: str, number: int) -> Path:
    """Return the file of one part of a table."""
    return path.with_name(path.name + PARTS_FOLDER) / f"{name}-{number:06}{PARQUET}"


FIRST_RANK = "rank-0"
"""What its logs are called, before their suffix."""
METRICS_FILE = "metrics.jsonl"
STEP_GROUP = "step"
"""The group of a metric's regular expression that matches the step's number."""
METRIC_COLUMNS = ("attempt", "source", "name", "value", "step", "time_s")
"""Attempt; the log it was printed to, such as rank-0; the metric; its value; the step's number, as
printed or else counted from 0; and when it was read, in seconds since 1970 (UTC)."""


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the values of a run's folder, in the order in which they were printed.

    Of an older version a line may be damaged, where the disk was full; it is left out.
    """
    try:
        text = (run / METRICS_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    complete = text[: text.rfind("\n") + 1]  # the last line may be half-written
    found = []
    for line in complete.splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found
