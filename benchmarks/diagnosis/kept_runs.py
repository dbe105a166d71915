"""Runs that were kept, with what was measured of them, so that a later doctor is tried on the same.

A diagnosis reads records alone. So what a change of the doctor does to all scripts is known in
minutes, with the rates that were measured when the runs were recorded.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

_FILE = "measured.json"


@dataclass(frozen=True, kw_only=True)
class KeptRun:
    """A run, and the rates of its script.

    Attributes:
        folder: Its name, beside the file that says so.
        recorded_rate: What the script printed of its speed as it was recorded; None: nothing.
        removal: The arguments that removed the bottleneck; empty: none were measured.
        slow: The script's rate without them, and without Headrace; None: not measured.
        fast: Its rate with them.
    """

    folder: str
    recorded_rate: float | None = None
    removal: tuple[str, ...] = ()
    slow: float | None = None
    fast: float | None = None


def read_kept_runs(folder: Path) -> dict[str, KeptRun]:
    """Return the runs that were kept in a folder, by script and round."""
    file = folder / _FILE
    if not file.exists():
        return {}
    rows = json.loads(file.read_text(encoding="utf-8"))
    return {key: KeptRun(**{**row, "removal": tuple(row["removal"])}) for key, row in rows.items()}


def keep_run(folder: Path, key: str, run: KeptRun) -> None:
    """Note a run of a folder by its script and round."""
    rows = {**read_kept_runs(folder), key: run}
    text = json.dumps({each: asdict(row) for each, row in rows.items()}, indent=2, sort_keys=True)
    (folder / _FILE).write_text(text + "\n", encoding="utf-8")
