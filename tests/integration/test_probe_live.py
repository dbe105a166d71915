"""A running job: read, switched, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from headrace.core.errors import HeadraceError
from headrace.records.reading import open_records
from jobs import eventually

SCRIPT = Path(__file__).parents[1] / "scripts" / "probed" / "until_told.py"
HEADRACE = [sys.executable, "-m", "headrace.cli.main"]


class Job:
    """A job that trains until it is told to stop."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.told, self.counted = folder / "run", folder / "stop", folder / "steps"
        self.process = subprocess.Popen(
            [*HEADRACE, "run", "--run-dir", str(self.folder), str(SCRIPT), str(self.told),
             str(self.counted)],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def made(self) -> int:
        return int(self.counted.read_text() or 0) if self.counted.exists() else 0

    def recorded(self) -> int:
        try:
            return int(open_records(self.folder).table("steps").num_rows)
        except HeadraceError:  # it has just begun
            return 0

    def close_looks(self) -> int:
        """Return how many looks at the system came sooner than every half second."""
        times = open_records(self.folder).table("system").column("t_ns").to_pylist()
        return sum(later - before < 0.35e9 for before, later in pairwise(sorted(times)))

    def switch(self, *flags: str) -> str:
        ended = subprocess.run(
            [*HEADRACE, "profile", str(self.folder), *flags],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return ended.stdout

    def events(self, kind: str) -> list[str]:
        rows = open_records(self.folder).table("events").to_pylist()
        return [row["text"] for row in rows if row["kind"] == kind]

    def stop(self) -> str:
        self.told.touch()
        _, said = self.process.communicate(timeout=120)
        return said


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    started = Job(tmp_path)
    yield started
    if started.process.poll() is None:
        started.process.kill()
        started.process.communicate()


def test_a_running_job_is_switched_off_on_and_deep(job: Job):
    eventually(lambda: job.recorded() >= 50, "50 recorded steps")
    assert "off" in job.switch("--off")
    # What was under way is written; from then on steps are made and none is recorded.
    before = job.made()
    eventually(lambda: job.made() >= before + 50, "50 steps after it was switched off")
    recorded, made = job.recorded(), job.made()
    eventually(lambda: job.made() >= made + 100, "100 steps while it is off")
    assert job.recorded() == recorded
    assert "on, system every 0.1 s" in job.switch("--on", "--interval", "100ms")
    eventually(
        lambda: job.recorded() >= recorded + 50, "50 recorded steps after it was switched on"
    )
    eventually(lambda: job.close_looks() >= 5, "looks at the system every 0.1 s")
    assert "deep" in job.switch("--deep", "30s")
    eventually(lambda: bool(job.events("trace")), "the trace of a deep look")
    (trace,) = job.events("trace")
    assert Path(trace).parent == job.folder / "traces"
    assert Path(trace).stat().st_size > 0
    said = job.stop()
    assert job.process.returncode == 0
    assert job.events("probe-fault") == []
    assert job.events("switched") == ["off", "on"]
    assert "Recording was switched off once" in said
    diagnosis = json.loads((job.folder / "diagnosis.json").read_text(encoding="utf-8"))
    assert diagnosis["verdict"]["sentence"] in " ".join(said.split())


def test_a_job_that_is_over_cannot_be_switched(job: Job):
    eventually(lambda: job.made() >= 1, "the first step")
    job.stop()
    ended = subprocess.run(
        [*HEADRACE, "profile", str(job.folder), "--off"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "is not running" in ended.stderr


def made_some_time_ago(job: Job) -> int:
    """Return how many steps the job had made half a second ago: it has some 300 a second."""
    eventually(lambda: job.recorded() >= 50, "50 recorded steps")
    made = job.made()
    eventually(lambda: job.made() >= made + 200, "200 more steps")
    return made


def test_what_a_killed_rank_did_is_there(job: Job):
    made = made_some_time_ago(job)
    rank = next(
        process
        for process in psutil.Process(job.process.pid).children(recursive=True)
        if str(SCRIPT) in process.cmdline()
    )
    rank.kill()
    job.process.communicate(timeout=120)
    assert job.process.returncode == 128 + signal.SIGKILL
    assert job.recorded() >= made


def test_what_a_killed_launcher_left_is_there(job: Job):
    made = made_some_time_ago(job)
    below = psutil.Process(job.process.pid).children(recursive=True)
    os.kill(job.process.pid, signal.SIGKILL)
    job.process.communicate()
    _, alive = psutil.wait_procs(below, timeout=60)
    assert not alive
    assert job.recorded() >= made
    ended = subprocess.run(
        [*HEADRACE, "doctor", str(job.folder)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
