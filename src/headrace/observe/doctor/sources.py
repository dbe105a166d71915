"""The source of the code that ran. Records hold none, so it is read when a run is diagnosed.

By then it may be another: a file that was written after the run began tells nothing of it.
"""

from __future__ import annotations

import linecache
from pathlib import Path

from headrace.observe.whatif.tables import Columns, length


def ran_since(hosts: Columns, processes: Columns) -> float | None:
    """Return when the recording of a run began, in seconds since 1970; None where not known.

    Each host has a clock of its own, and no record tells which a process is on; so with several
    hosts it is the earliest time that it may have been.

    Args:
        hosts: The table.
        processes: The table.
    """
    if length(hosts) == 0 or length(processes) == 0:
        return None
    offset_ns, started_ns = int(hosts["unix_offset_ns"].min()), int(processes["started_ns"].min())
    return (offset_ns + started_ns) / 1e9 if offset_ns > 0 else None


def is_newer(file: str, ran_since_s: float | None) -> bool:
    """Whether a file is there and was written after a time."""
    try:
        return ran_since_s is not None and Path(file).stat().st_mtime > ran_since_s
    except (OSError, ValueError):
        return False


def lines_as_run(file: str, ran_since_s: float | None) -> list[str]:
    """Return a file's lines as they were when a run began; none where that is not to be had.

    Args:
        file: The file's path, as recorded.
        ran_since_s: When the run began, in seconds since 1970; None: not known, so nothing is
            checked.
    """
    if is_newer(file, ran_since_s):
        return []
    linecache.checkcache(file)  # a live view diagnoses again and again
    return linecache.getlines(file)
