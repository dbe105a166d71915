"""Scripts of `tests/scripts/probed`, recorded through `headrace run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
from headrace.records.reading import open_records
from headrace.records.schema import PHASES

SCRIPTS = Path(__file__).parent / "scripts" / "probed"


class Run:
    """A recorded run."""

    def __init__(self, folder: Path, script: str, *arguments: str, flags: tuple[str, ...] = ()):
        self.folder = folder
        path = str(SCRIPTS / f"{script}.py")
        self.ended = jobs.run(
            folder.parent, "--run-dir", str(folder), *flags, path, *arguments, timeout_s=240
        )
        assert self.ended.returncode == 0, self.ended.stderr

    def rows(self, table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = open_records(self.folder).table(table).to_pylist()
        return found

    def steps(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.rows("steps") if row["kind"] == kind]


def check(run: Run) -> None:
    """Check what holds for every run."""
    assert [row for row in run.rows("events") if row["kind"] == "probe-fault"] == []
    for row in run.rows("steps"):
        assert sum(row[f"{phase}_ns"] for phase in PHASES) == row["wall_ns"]
    for row in run.rows("batches"):
        assert row["collate_ns"] <= row["wall_ns"]
        assert row["read_ns"] <= row["wall_ns"]
    assert run.rows("hosts")[0]["cores"] > 0
    assert run.rows("system")
