"""Which samples are of slow steps, and what ran in these alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.findings import Finding
from headrace.observe.probe.slow_steps import SlowStepSamples
from run_tables import MS, SCRIPT, Run, RunTables, play, stack

MAIN, MODEL = f"{SCRIPT}:58:main", f"{SCRIPT}:12:Network.forward"
FORWARD = stack(f"{SCRIPT}:60:main", MODEL)
EVALUATES = stack(MAIN, f"{SCRIPT}:30:evaluate", f"{SCRIPT}:31:evaluate.<locals>.<genexpr>", MODEL)
SAVES = stack(MAIN, f"{SCRIPT}:77:save", "/venv/lib/python3.11/site-packages/torch/x.py:5:save")
TRAINER = "/venv/lib/python3.11/site-packages/transformers/trainer.py"
LIBRARY = [f"{SCRIPT}:90:<module>", f"{TRAINER}:2000:Trainer.train"]
HEALTHY = {"workers": 4, "service_ms": 8, "busy_cores": 3, "batches": 400}


@given(
    walls=st.lists(st.integers(1, 30), min_size=1, max_size=60),
    at=st.lists(st.integers(0, 1800), max_size=80, unique=True),
)
def test_each_sample_of_a_slow_step_is_kept_once_and_no_other(walls: list[int], at: list[int]):
    ends = np.cumsum(walls)
    kept: list[int] = []
    samples = SlowStepSamples()
    left = sorted(at)
    for wall, end in zip(walls, ends, strict=True):
        while left and left[0] <= end + 5:  # rows may come late, with samples of the next step
            time = left.pop(0)
            samples.sampled(time, lambda time=time: kept.append(time))
        samples.row_ended(int(end - wall), wall, trains=True)
    assert len(kept) == len(set(kept))
    steps = [int(np.searchsorted(ends, time)) for time in kept]
    assert all(walls[step] >= 1.5 * min(walls) for step in steps)
    if len(walls) >= 8 and max(walls) == min(walls):
        assert kept == []


def test_what_is_between_steps_is_no_slow_step():
    kept: list[int] = []
    samples = SlowStepSamples()
    for step in range(20):
        begin = step * 100
        samples.sampled(begin + 5, lambda step=step: kept.append(step))
        trains = step != 15
        samples.row_ended(begin, 100 if step == 15 else 80 if step == 10 else 10, trains=trains)
    assert kept == [10]


def interrupted(inner: str, phase: str, every: int = 20, usual_share: float = 1.0) -> RunTables:
    """A run with long steps, whose samples are recorded apart, beside those of all steps.

    Args:
        inner: The stack of the long steps.
        phase: In which they are longer.
        every: How many steps there are to a long one.
        usual_share: Of the samples of usual steps, how many are in the model.
    """
    tables = play(Run(**HEALTHY))
    steps = [row for row in tables.rows["steps"] if row["step"] % every == 0 and row["step"]]
    for row in steps:
        row[f"{phase}_ns"] += 60 * MS
        row["wall_ns"] += 60 * MS
    for number, row in enumerate(tables.rows["steps"][1:]):
        before = tables.rows["steps"][number]
        row["start_ns"] = before["start_ns"] + before["wall_ns"]
    for table, frames, share in (
        ("stacks", FORWARD, usual_share),
        ("stacks", stack(f"{SCRIPT}:61:main"), 1.0 - usual_share),
        ("stacks", inner, 0.3),
        ("slow_step_stacks", inner, 0.3),
        ("slow_step_stacks", FORWARD, 0.02),
    ):
        tables.add(
            table, pid=100, rank=0, loader=-1, worker=-1, phase=phase, stack=frames,
            samples=100, wall_ns=int(share * 4000 * MS), cpu_ns=int(share * 4000 * MS),
            start_ns=0, end_ns=60_000 * MS,
        )  # fmt: skip
    return tables


def outliers(tables: RunTables) -> Finding:
    return {each.rule: each for each in diagnose(tables).findings}["step-outliers"]


@pytest.mark.parametrize(
    ("inner", "phase", "line", "name"),
    [
        (EVALUATES, "forward", 58, "evaluate"),
        (SAVES, "other", 77, "save"),
        (
            stack(*LIBRARY, f"{TRAINER}:2900:Trainer._maybe_save", f"{TRAINER}:3000:Trainer._save"),
            "other",
            90,
            "transformers Trainer._save",
        ),
        (
            stack(*LIBRARY, f"{SCRIPT}:33:Model.validation_step", MODEL),
            "forward",
            33,
            "Model.validation_step",
        ),
    ],
)
def test_what_ran_in_long_steps_alone_is_named(inner: str, phase: str, line: int, name: str):
    tables = interrupted(inner, phase)
    if "transformers" in inner or "validation" in inner:  # its loop is what runs in all steps
        for row in tables.rows["stacks"]:
            if row["stack"] == FORWARD:
                row["stack"] = stack(*LIBRARY, MODEL)
        for row in tables.rows["slow_step_stacks"]:
            if row["stack"] == FORWARD:
                row["stack"] = stack(*LIBRARY, MODEL)
    cause = outliers(tables).cause
    assert cause is not None
    assert (cause.line, cause.name) == (line, name)


def test_the_model_is_not_blamed_where_chance_left_it_out_of_nearly_all_samples_of_usual_steps():
    cause = outliers(interrupted(EVALUATES, "forward", usual_share=0.06)).cause
    assert cause is not None
    assert (cause.line, cause.name) == (58, "evaluate")


def test_what_every_step_runs_is_not_blamed():
    found = outliers(interrupted(FORWARD, "forward"))
    assert found.cause is None


def burst(tables: RunTables) -> None:
    """Let other programs take the cores while steps are long, and at no other time."""
    slow = [row for row in tables.rows["steps"] if row["step"] % 20 == 0 and row["step"]]
    ticks = sorted({row["start_ns"] + row["wall_ns"] for row in tables.rows["steps"]})
    ends = {row["start_ns"] + row["wall_ns"] for row in slow}
    busy = [100.0 if tick in ends else 20.0 for tick in ticks]
    tables.system = {"t_ns": ticks, "core_0_percent": busy, "core_1_percent": busy}
    for tick in ticks:
        tables.add("process_usage", t_ns=tick, pid=100, cpu_percent=20.0, threads=1)


def test_what_waits_while_a_core_is_idle_waits_for_no_other_program():
    tables = interrupted(FORWARD, "forward")
    for row in tables.rows["slow_step_stacks"]:
        row["cpu_ns"] = 0  # as in a call to another machine
    found = outliers(tables)
    assert "while other processes take its cores" in found.title
    assert found.remedies[0].how.startswith("Other jobs of the host")  # the script starts none
    tables.rows["hosts"][0]["cores"] = 4.0
    ticks = sorted({row["start_ns"] + row["wall_ns"] for row in tables.rows["steps"]})
    idle = dict.fromkeys([f"core_{number}_percent" for number in range(4)], [10.0] * len(ticks))
    tables.system = {"t_ns": ticks, **idle}
    for tick in ticks:
        tables.add("process_usage", t_ns=tick, pid=100, cpu_percent=20.0, threads=1)
    assert "other processes" not in outliers(tables).title


def test_bursts_of_other_programs_are_told_as_such():
    tables = interrupted(FORWARD, "forward")
    tables.rows["hosts"][0]["cores"] = 2.0
    burst(tables)
    found = outliers(tables)
    assert found.cause is None
    assert "while other processes take its cores" in found.title
    assert [remedy.name for remedy in found.remedies] == ["own-cores"]
    assert found.severity == "warning"
