"""Training on several loaders, one after the other: which is looked at, and what it gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.observe.doctor.evidence import gather_evidence
from headrace.observe.whatif.loaders_in_turn import (
    fed_by,
    main_loader,
    speedup_of_all,
    speedup_of_part,
)
from headrace.observe.whatif.measured_pipeline import measure
from headrace.observe.whatif.prediction import Simulator, with_workers
from headrace.observe.whatif.train_steps import read_steps
from played_script import Script, found

FIRST, SECOND = 0, 1


def trained(script: Script, loader: int, steps: int, wait_ms: float, **more_ms: float) -> Script:
    """Play a loader's epoch; while the script waits it makes the batch, without workers."""
    script.iterates(loader)
    phases: dict[str, float] = {"forward": 15, "backward": 23, "optimizer": 1, **more_ms}
    for _ in range(steps):
        script.fetch(wait_ms, loader)
        script.row("train", loader, data_wait=wait_ms, **phases)
    return script


def in_turn(waits_ms: tuple[float, float], steps: tuple[int, int], epochs: int = 3) -> Script:
    script = Script(workers=(0, 0))
    for _ in range(epochs):
        for loader in (FIRST, SECOND):
            trained(script, loader, steps[loader], waits_ms[loader])
    return script


@pytest.mark.parametrize(
    ("waits_ms", "steps", "main"),
    [
        ((1, 40), (200, 60), SECOND),  # fewer steps, and nearly all of the wait
        ((1, 1), (200, 60), FIRST),  # none waits: the one that takes longest
        ((40, 1), (60, 200), FIRST),
        ((1, 400), (600, 10), FIRST),  # the other one's steps are a small part of the time
        ((1, 4000), (60, 3), FIRST),  # they are most of it, and too few
    ],
)
def test_the_loader_that_is_waited_for_longest_is_looked_at(
    waits_ms: tuple[float, float], steps: tuple[int, int], main: int
):
    assert main_loader(read_steps(in_turn(waits_ms, steps).tables)) == main


def test_the_steps_of_one_loader_alone_are_its_evidence():
    script = in_turn((1, 40), (200, 60))
    evidence = gather_evidence(script.tables)
    assert set(evidence.steps.rows["loader"]) == {SECOND}
    assert evidence.steps.part == pytest.approx(60 * 79 / (60 * 79 + 200 * 40), abs=0.01)
    assert evidence.joint == ()
    assert len(evidence.all_steps) > 2 * len(evidence.steps)


def test_the_gain_is_that_of_all_steps():
    """Where its batches are made in no time, the second loader's steps take 39 ms of 79."""
    script = in_turn((1, 40), (200, 60))
    diagnosis, rules = found(script)
    assert f"at train.py:{40 + SECOND}" in diagnosis.verdict.sentence
    gain = rules["too-few-workers"].remedies[0]
    before, after = 60 * 79 + 200 * 40, 60 * 40 + 200 * 40
    assert gain.predicted_speedup == pytest.approx(before / after, rel=0.04)
    waits = (60 * 40 + 200 * 1) / before
    assert diagnosis.verdict.data_wait_share == pytest.approx(waits, abs=0.01)
    measured = measure(script.tables)
    assert measured is not None
    own = with_workers(Simulator(measured), 2).speedup
    assert own == pytest.approx(before / after, rel=0.04)


def test_loaders_that_change_from_step_to_step_stay_together():
    script = Script(workers=(0, 0))
    script.iterates(FIRST).iterates(SECOND)
    for _ in range(100):
        for loader, wait_ms in ((FIRST, 1), (SECOND, 40)):
            script.fetch(wait_ms, loader)
            script.row("train", loader, data_wait=wait_ms, forward=15, backward=23, optimizer=1)
    steps = read_steps(script.tables)
    assert fed_by(steps, main_loader(steps)) is steps


def test_steps_without_a_batch_belong_to_the_loader_that_fed_the_rank_last():
    script = Script(workers=(0, 0))
    for loader in (FIRST, SECOND):
        script.iterates(loader)
        for _ in range(50):
            script.fetch(1, loader)
            script.row("train", loader, data_wait=1, forward=15, backward=23, optimizer=1)
            script.row("train", -1, batches=0, forward=10, backward=10, optimizer=1)
    steps = fed_by(read_steps(script.tables), FIRST)
    assert len(steps) == 100 - 2  # without the warm-up
    assert int((steps.rows["batches"] == 0).sum()) == 50 - 1


@given(st.floats(0.01, 1.0), st.floats(0.05, 50.0))
def test_what_a_part_gains_is_that_of_all_and_the_reverse(part: float, own: float):
    whole = speedup_of_all(own, part)
    assert min(own, 1.0) <= whole * (1 + 1e-9)
    assert whole <= max(own, 1.0) * (1 + 1e-9)
    assert speedup_of_part(whole, part) == pytest.approx(own, rel=1e-6)
