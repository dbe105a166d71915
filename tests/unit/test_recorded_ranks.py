"""The ranks of a job in the list of runs and in `headrace top`: those that record.

A launcher knows of the ranks that it starts itself, not of those that its script starts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.records.run_folder import RunFolder, open_run_folder
from headrace.records.schema import PROCESSES, STEPS, RowLimits
from headrace.report.top.run_watcher import RunWatcher
from live_app_here import LiveApp
from records_folders import collector_of
from run_tables import row_of

S = 1_000_000_000
RANKS, STEPS_OF_RANK, SAMPLES = 8, 100, 32


def begun(folder: Path, asked: int) -> RunFolder:
    """A run whose launcher, this process, has started so many ranks."""
    made = open_run_folder(run_dir=str(folder), name=None, script="train.py")
    made.start_attempt(command=["headrace"], argv=["train.py"], world_size=asked)
    return made


def listed(folder: Path) -> dict[str, Any]:
    """The one run of a folder as the list of runs has it."""
    (run,) = json.loads(LiveApp(folder).get("/api/runs").text)["runs"]
    return dict(run)


def process(rank: int, worker: int = -1) -> tuple[Any, ...]:
    role, loader = ("rank", -1) if worker < 0 else ("worker", 0)
    return row_of(
        PROCESSES, pid=100 * (rank + 1) + worker, role=role, rank=rank, loader=loader,
        worker=worker, world_size=1, started_ns=S, attempt=1,
    )  # fmt: skip


@pytest.mark.parametrize("asked", [1, RANKS, 2 * RANKS])  # the last of an elastic job
@pytest.mark.parametrize("part", [RowLimits().part, 200])  # rows that go to a part of their own
def test_the_rate_and_the_number_of_ranks_are_those_of_the_ranks_that_record(
    tmp_path: Path, asked: int, part: int
):
    run = begun(tmp_path / "runs" / "job", asked)
    collector = collector_of(run.path, RowLimits(part=part))
    assert listed(tmp_path / "runs")["ranks"] == asked
    assert RunWatcher(run.path).look().status.world_size == asked
    processes = [process(rank, worker) for worker in (-1, 0, 1) for rank in range(RANKS)]
    steps = [
        row_of(
            STEPS, rank=rank, step=number, kind="train", start_ns=(2 + number) * S, wall_ns=S,
            data_wait_ns=S // 4, forward_ns=S - S // 4, batches=1, samples=SAMPLES,
        )
        for number in range(STEPS_OF_RANK)
        for rank in range(RANKS)
    ]  # fmt: skip
    collector.add(PROCESSES, processes)
    collector.add(STEPS, steps)
    collector.drain()
    found = listed(tmp_path / "runs")
    assert (found["state"], found["ranks"]) == ("running", RANKS)
    assert found["samples_per_s"] == pytest.approx(RANKS * SAMPLES)
    assert found["data_wait_share"] == pytest.approx(0.25)
    state = RunWatcher(run.path).look()
    assert state.status.world_size == RANKS
    assert state.steps.samples_per_s == pytest.approx(RANKS * SAMPLES)
    collector.close()
    run.end_attempt(1, 0)
    found = listed(tmp_path / "runs")
    assert (found["state"], found["ranks"]) == ("done", RANKS)
    state = RunWatcher(run.path).look()
    assert (state.status.live, state.status.world_size) == (False, RANKS)
