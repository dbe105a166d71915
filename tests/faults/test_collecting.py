"""The process that collects records is killed while a job runs: another takes over."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from headrace.records.reading import open_records
from jobs import DEADLINE_S, descendants, eventually, started

SCRIPT = Path(__file__).parents[1] / "scripts" / "probed" / "until_told.py"


def collector_of(job: int) -> int:
    for pid in descendants(job):
        with suppress(psutil.NoSuchProcess):  # or a zombie
            if "headrace.observe.probe.host" in psutil.Process(pid).cmdline():
                return pid
    return 0


@pytest.mark.parametrize("flags", [[], ["--nproc-per-node", "1"]])
def test_a_killed_collector_is_followed_by_another_that_loses_nothing(
    tmp_path: Path, flags: list[str]
):
    stop, counted, run = tmp_path / "stop", tmp_path / "steps", tmp_path / "runs" / "r"
    script = ["--name", "r", *flags, str(SCRIPT), str(stop), str(counted)]
    with started(tmp_path, *script) as job:
        eventually(counted.exists, "the first step")
        for _ in range(2):
            killed = eventually(lambda: collector_of(job.pid), "the collector")
            before = open_records(run).table("steps").num_rows
            os.kill(killed, signal.SIGKILL)
            eventually(lambda k=killed: collector_of(job.pid) not in (0, k), "another")
            eventually(
                lambda b=before: open_records(run).table("steps").num_rows > b + 50, "more steps"
            )
        stop.touch()
        assert job.wait(timeout=DEADLINE_S) == 0
    steps = open_records(run).table("steps").to_pylist()
    numbers = [row["step"] for row in steps if row["kind"] == "train"]
    assert numbers == list(range(int(counted.read_text())))
    said = (tmp_path / "terminal").read_text()
    assert said.count("collects records was killed by SIGKILL") == 2
    assert said.count("another takes over") == 2
    assert not list((run / "records" / "attempt-1").glob("*.sqlite"))  # closed, all of it
