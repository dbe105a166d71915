"""A running job: switched, its collector, its rank and its launcher killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import psutil

from headrace.core.errors import HeadraceError
from headrace.records.reader import open_records
from jobs import DEADLINE_S, clean_environment, descendants, eventually, headrace, run_here

SCRIPT = Path(__file__).parents[1] / "scripts" / "probed" / "until_file.py"


class Job:
    """A job that trains until it is stopped."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder, self.end, self.counted = folder / "run", folder / "stop", folder / "steps"
        words = ["run", "--run-dir", str(self.folder), *flags, str(SCRIPT)]
        self.process = subprocess.Popen(
            headrace(*words, str(self.end), str(self.counted)),
            env=clean_environment(),
            stderr=subprocess.PIPE,
            text=True,
        )

    def made(self) -> int:
        return int(self.counted.read_text() or 0) if self.counted.exists() else 0

    def recorded(self) -> int:
        try:
            return int(open_records(self.folder).table("steps").num_rows)
        except HeadraceError:  # it has just begun
            return 0

    def records_more(self, count: int, when: str) -> None:
        """Wait for so many more recorded steps; records are read once those are made."""
        recorded, made = self.recorded(), self.made()
        eventually(
            lambda: self.made() >= made + count and self.recorded() >= recorded + count,
            f"{count} more recorded steps {when}",
        )

    def unrecorded(self) -> int:
        """Return how many steps are not recorded, or not yet: at least those made while off."""
        looks = ((self.recorded(), self.made()) for _ in range(10))
        return min(made - recorded for recorded, made in looks)

    def numbers(self) -> list[int]:
        rows = open_records(self.folder).table("steps").to_pylist()
        return [row["step"] for row in rows if row["kind"] == "train"]

    def close_looks(self) -> int:
        """Return how many looks at the system came sooner than every half second."""
        times = open_records(self.folder).table("system").column("t_ns").to_pylist()
        return sum(later - before < 0.35e9 for before, later in pairwise(sorted(times)))

    def switch(self, *flags: str) -> str:
        ended = run_here(self.folder, "profile", str(self.folder), *flags)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def events(self, kind: str) -> list[str]:
        rows = open_records(self.folder).table("events").to_pylist()
        return [row["text"] for row in rows if row["kind"] == kind]

    def stop(self) -> str:
        self.end.touch()
        _, output = self.process.communicate(timeout=DEADLINE_S)
        return output

    def made_some_time_ago(self) -> int:
        """Return how many steps the job had made a second ago: it has some 100 a second."""
        self.records_more(50, "at the start")
        made = self.made()
        eventually(lambda: self.made() >= made + 100, "100 more steps")
        return made

    def collector(self) -> int:
        for pid in descendants(self.process.pid):
            with suppress(psutil.NoSuchProcess):  # or a zombie
                if "headrace.observe.probe.collector_process" in psutil.Process(pid).cmdline():
                    return pid
        return 0

    def kill_collector_twice(self) -> None:
        eventually(self.made, "the first step")
        for _ in range(2):
            killed = eventually(self.collector, "the collector")
            os.kill(killed, signal.SIGKILL)
            eventually(lambda k=killed: self.collector() not in {0, k}, "another")
            self.records_more(50, "after the collector was killed")


@contextmanager
def started(folder: Path, *flags: str) -> Iterator[Job]:
    job = Job(folder, *flags)
    try:
        yield job
    finally:
        for pid in [*descendants(job.process.pid), job.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.process.communicate()


def check_collector_kills(job: Job, output: str) -> None:
    assert output.count("collects records was killed by SIGKILL") == 2
    assert output.count("another takes over") == 2
    assert not list((job.folder / "records" / "attempt-1").glob("*.sqlite"))  # closed, all of it


def switch_off_on_and_deep(job: Job) -> None:
    job.records_more(50, "at the start")
    assert "off" in job.switch("--off")
    # What was under way is written; from then on steps are made and none is recorded.
    before = job.made()
    eventually(lambda: job.made() >= before + 50, "50 steps after it was switched off")
    recorded, made = job.recorded(), job.made()
    eventually(lambda: job.made() >= made + 100, "100 steps while it is off")
    assert job.recorded() == recorded
    assert "on, system every 0.1 s" in job.switch("--on", "--interval", "100ms")
    job.records_more(50, "after it is on")
    eventually(lambda: job.close_looks() >= 5, "looks at the system every 0.1 s")
    assert "deep" in job.switch("--deep", "30s")
    traces = job.folder / "traces"
    eventually(
        lambda: any(traces.glob("*")) and bool(job.events("trace")), "the trace of a deep look"
    )
    (trace,) = job.events("trace")
    assert Path(trace).parent == traces
    assert Path(trace).stat().st_size > 0


def test_a_job_under_torchrun_is_switched_and_loses_nothing_when_collectors_are_killed(
    tmp_path: Path,
):
    with started(tmp_path, "--nproc-per-node", "1") as job:
        switch_off_on_and_deep(job)
        unrecorded = job.unrecorded()
        assert unrecorded >= 100
        job.kill_collector_twice()
        output = job.stop()
        assert job.process.returncode == 0
        # Those made while it was off have no number; all others are there, to the last one.
        assert job.numbers() == list(range(len(job.numbers())))
        assert job.made() - len(job.numbers()) <= unrecorded
        check_collector_kills(job, output)
        assert job.events("probe-fault") == []
        assert job.events("switched") == ["off", "on"]
        assert "Recording was switched off once" in output
        diagnosis = json.loads((job.folder / "diagnosis.json").read_text(encoding="utf-8"))
        assert diagnosis["verdict"]["sentence"] in " ".join(output.split())
        # A job that is over cannot be switched.
        ended = run_here(tmp_path, "profile", str(job.folder), "--off")
        assert ended.returncode == 1
        assert "is not running" in ended.stderr


def test_what_a_rank_did_whose_collectors_and_then_itself_were_killed_is_there(tmp_path: Path):
    with started(tmp_path) as job:
        job.kill_collector_twice()
        made = job.made_some_time_ago()
        below = psutil.Process(job.process.pid).children(recursive=True)
        next(each for each in below if str(SCRIPT) in each.cmdline()).kill()
        _, output = job.process.communicate(timeout=DEADLINE_S)
        assert job.process.returncode == 128 + signal.SIGKILL
        numbers = job.numbers()
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= made
        check_collector_kills(job, output)


def test_what_a_killed_launcher_left_is_there(tmp_path: Path):
    with started(tmp_path) as job:
        made = job.made_some_time_ago()
        below = psutil.Process(job.process.pid).children(recursive=True)
        os.kill(job.process.pid, signal.SIGKILL)
        job.process.communicate(timeout=DEADLINE_S)
        _, alive = psutil.wait_procs(below, timeout=DEADLINE_S)
        assert not alive
        assert job.recorded() >= made
        ended = run_here(tmp_path, "doctor", str(job.folder))
        assert ended.returncode == 0, ended.stderr
