"""Scripts of `tests/scripts/probed`, recorded through `headrace run`: once for many tests.

A recorded job takes seconds of CPU time, most of them to import torch. So scripts share a job, one
after another in one process (`several.py`), and what each of them did is distinguished by its time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jobs
from headrace.records.reader import open_records
from headrace.records.schema import PHASES

SCRIPTS = Path(__file__).parent / "scripts" / "probed"
_TIMES = ("start_ns", "created_ns", "started_ns", "at_ns", "t_ns")


class Run:
    """A recorded run: its folder, and its rows by table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tables: dict[str, list[dict[str, Any]]] = {}

    def rows(self, table: str) -> list[dict[str, Any]]:
        if table not in self._tables:
            self._tables[table] = open_records(self.folder).table(table).to_pylist()
        return self._tables[table]

    def steps(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.rows("steps") if row["kind"] == kind]

    @cached_property
    def stderr(self) -> str:
        """What the launcher and the script wrote."""
        return (self.folder.parent / "stderr").read_text()

    @cached_property
    def stdout(self) -> str:
        return (self.folder.parent / "stdout").read_text()


class Part(Run):
    """What one script did of a run of several: the rows of its time, its loaders from 0 on."""

    def __init__(self, whole: Run, number: int) -> None:
        super().__init__(whole.folder)
        self._whole = whole
        files = whole.folder.parent.glob("parts-*.json")
        self._spans = {
            int(file.stem.partition("-")[2]): json.loads(file.read_text())[number] for file in files
        }

    def rows(self, table: str) -> list[dict[str, Any]]:
        if table not in self._tables:
            rows = [row for row in self._whole.rows(table) if self._has(table, row)]
            self._tables[table] = [self._renumbered(row) for row in rows]
        return self._tables[table]

    def _has(self, table: str, row: dict[str, Any]) -> bool:
        if table == "transforms" and row["loader"] >= 0:  # its seconds are those of all scripts
            return row["loader"] in self._loaders
        began, ended = self._spans.get(row.get("rank", 0), self._spans[0])
        if table == "steps" and row["kind"] == "train" and row["loader"] >= 0:
            # What follows a script's last step lasts until the next script's first batch.
            ended -= row["wall_ns"]
        at = next(row[name] for name in _TIMES if name in row)
        if table == "stacks":
            return bool(at < ended and row["end_ns"] > began)
        return bool(began <= at < ended)

    def _renumbered(self, row: dict[str, Any]) -> dict[str, Any]:
        if row.get("loader", -1) < 0:
            return row
        return row | {"loader": row["loader"] - min(self._loaders, default=0)}

    @cached_property
    def _loaders(self) -> set[int]:
        return {row["loader"] for row in self._whole.rows("loaders") if self._has("loaders", row)}


def check(run: Run, faults: Sequence[str] = ()) -> None:
    """Check what holds for every run; the probe has had just these `faults`."""
    texts = [row["text"] for row in run.rows("events") if row["kind"] == "probe-fault"]
    assert texts == list(faults)
    for row in run.rows("steps"):
        assert sum(row[f"{phase}_ns"] for phase in PHASES) == row["wall_ns"]
    for row in run.rows("batches"):
        assert row["collate_ns"] <= row["wall_ns"]
        assert row["read_ns"] <= row["wall_ns"]
    assert run.rows("hosts")[0]["cores"] > 0
    assert run.rows("system")


def record(folder: Path, script: Path | str, *arguments: str, flags: Sequence[str] = ()) -> Run:
    """Record a script, which may import `points`; its run's folder becomes `folder/run`."""
    path = SCRIPTS / f"{script}.py" if isinstance(script, str) else script
    words = ("run", "--run-dir", str(folder / "run"), *flags, str(path), *arguments)
    ended = jobs.run_here(folder, *words, PYTHONPATH=str(SCRIPTS))
    (folder / "stdout").write_text(ended.stdout)
    (folder / "stderr").write_text(ended.stderr)
    assert ended.returncode == 0, ended.stderr
    return Run(folder / "run")


def record_several(
    folder: Path, scripts: Sequence[Sequence[str | Path]], flags: Sequence[str] = ()
) -> Run:
    """Record scripts one after another in one process; each with its arguments."""
    words = [[str(_path_of(script)), *map(str, more)] for script, *more in scripts]
    return record(folder, "several", json.dumps(words), str(folder), flags=flags)


def _path_of(script: str | Path) -> Path:
    return script if isinstance(script, Path) else SCRIPTS / f"{script}.py"
