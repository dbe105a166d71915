"""Where the records of a run lie in its folder."""

from __future__ import annotations

from pathlib import Path

RECORDS = "records"
RINGS = "rings"
PARQUET = ".parquet"
STORE = ".sqlite"
LOCK = ".lock"
LAST_CLOSED = f"system{PARQUET}"
"""The Parquet file that is written last."""
_ATTEMPT = "attempt-"


def attempts_with_records(run: Path) -> list[int]:
    """Return the numbers of the attempts that have a folder of records, ascending."""
    names = [path.name.removeprefix(_ATTEMPT) for path in (run / RECORDS).glob(f"{_ATTEMPT}*")]
    return sorted(int(name) for name in names if name.isdecimal())


def is_closed(folder: Path) -> bool:
    """Tell whether a folder of records has been closed; it may still have the store, too."""
    return (folder / LAST_CLOSED).exists()
