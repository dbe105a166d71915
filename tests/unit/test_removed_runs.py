"""Runs that are removed while they are listed."""

from __future__ import annotations

import threading
from pathlib import Path

from headrace.records.reader import closed_folders_in, runs_in

_LISTINGS = 1000


def test_folders_that_come_and_go_meanwhile_are_listed_or_not(tmp_path: Path):
    runs = tmp_path / "runs"
    for name in ("base", "sweep/0", "sweep/1"):
        (runs / name / "records").mkdir(parents=True)
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            (runs / "sweep").rename(tmp_path / "elsewhere")
            (tmp_path / "elsewhere").rename(runs / "sweep")

    mover = threading.Thread(target=come_and_go)
    mover.start()
    try:
        for _ in range(_LISTINGS):
            found = {path.relative_to(runs).as_posix() for path in runs_in(runs)}
            assert "base" in found
            assert found <= {"base", "sweep/0", "sweep/1"}
            assert closed_folders_in(runs) == []
    finally:
        ended.set()
        mover.join()
