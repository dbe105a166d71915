"""Epochs that begin slowly: workers that start, and first batches that take long, apart."""

from __future__ import annotations

import pytest

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.epoch_begins import epoch_begin_waits
from headrace.observe.doctor.evidence import gather_evidence
from headrace.observe.doctor.findings import Diagnosis, Finding
from run_tables import AUGMENT, MS, WORKER_LOOP, Run, RunTables, play, stack

EPOCHS = {"workers": 2, "service_ms": 4, "batches": 20, "epochs": 5, "busy_cores": 2}
FILL = stack(WORKER_LOOP, f"{AUGMENT}:70:Stream.__iter__")


def first_batches_take(tables: RunTables, longer_ms: int) -> RunTables:
    """Have the first batch of each epoch take longer, and all that follows come later."""
    longer_ns = longer_ms * MS
    begins = sorted(row["start_ns"] for row in tables.rows["fetches"] if row["batch"] == 0)

    def epoch(at_ns: int) -> int:  # from 1
        return sum(begin <= at_ns for begin in begins)

    firsts: dict[int, int] = {}
    for row in tables.rows["batches"]:
        if row["worker"] == 0:
            firsts.setdefault(epoch(row["start_ns"]), row["start_ns"])
    for row in tables.rows["batches"]:
        number = epoch(row["start_ns"])
        is_first = row["worker"] == 0 and row["start_ns"] == firsts[number]
        row["start_ns"] += longer_ns * (number - is_first)
        row["wall_ns"] += longer_ns * is_first
    for row in tables.rows["fetches"]:
        is_first = row["batch"] == 0
        row["start_ns"] += longer_ns * (epoch(row["start_ns"]) - is_first)
        row["wait_ns"] += longer_ns * is_first
    for row in tables.rows["steps"]:
        before, after = epoch(row["start_ns"] - 1), epoch(row["start_ns"] + row["wall_ns"] - 1)
        row["start_ns"] += longer_ns * before
        row["data_wait_ns"] += longer_ns * (after - before)
        row["wall_ns"] += longer_ns * (after - before)
    return tables


def found(diagnosis: Diagnosis) -> dict[str, Finding]:
    return {each.rule: each for each in diagnosis.findings}


def test_a_slow_start_of_workers_is_mended_by_workers_that_live_on():
    findings = found(diagnose(play(Run(**EPOCHS, restart_ms=400.0))))
    remedy = findings["workers-restarted"].remedies[0]
    assert remedy.name == "persistent-workers"
    assert (remedy.predicted_speedup or 0.0) > 1.5


def test_a_first_batch_that_takes_long_is_not():
    tables = first_batches_take(play(Run(**EPOCHS, worker_stacks=[(FILL, 0.9, 1.0)])), 400)
    findings = found(diagnose(tables))
    assert "workers-restarted" not in findings
    waits = findings["data-wait"]
    assert "the first batch of an epoch takes 0.4 s to make" in waits.title
    assert [remedy.name for remedy in waits.remedies] == ["sooner-first-batch"]
    assert waits.cause is not None
    assert waits.cause.line == 70


def test_a_sampler_that_draws_up_the_epoch_is_no_start_of_workers():
    tables = play(Run(**EPOCHS, restart_ms=405.0))
    for row in tables.rows["fetches"]:
        row["sampler_ns"] = 400 * MS if row["batch"] == 0 else 0
    findings = found(diagnose(tables))
    assert "workers-restarted" not in findings
    sampler = findings["slow-sampler"]
    assert sampler.evidence["share_of_it_as_epochs_begin"] == pytest.approx(1.0)
    waits = epoch_begin_waits(gather_evidence(tables))
    assert waits.starting_ns.max() / MS < 20


@pytest.mark.parametrize(("start_ms", "batch_ms"), [(300, 0), (0, 300), (200, 100)])
def test_both_parts_add_up_to_the_wait(start_ms: int, batch_ms: int):
    tables = first_batches_take(play(Run(**EPOCHS, restart_ms=5.0 + start_ms)), batch_ms)
    evidence = gather_evidence(tables)
    waits = epoch_begin_waits(evidence)
    begins = evidence.steps.starts_loader
    assert begins.sum() == EPOCHS["epochs"] - 1  # the first step is warm-up
    assert waits.starting_ns[begins].mean() / MS == pytest.approx(start_ms + 5, abs=15)
    assert waits.making_ns[begins].mean() / MS == pytest.approx(batch_ms + 4, abs=15)
    assert not waits.starting_ns[~begins].any()


@pytest.mark.parametrize("made_ms", [4.0, 60.0])
def test_an_iterator_for_each_batch_is_told_and_no_slow_first_batch(made_ms: float):
    """`next(iter(loader))` in each step: all batches are first ones."""
    each = Run(workers=2, service_ms=made_ms, batches=1, epochs=60, restart_ms=40.0)
    findings = found(diagnose(play(each)))
    assert next(iter(findings)) == "workers-restarted"
    assert "data-wait" not in findings
    restarted = findings["workers-restarted"]
    assert restarted.title.startswith("an iterator is made for each batch of the loader at")
    assert [remedy.name for remedy in restarted.remedies] == ["one-iterator"]


def test_epochs_of_a_few_batches_have_an_iterator_each():
    findings = found(diagnose(play(Run(workers=2, batches=6, epochs=30, restart_ms=200.0))))
    assert findings["workers-restarted"].title.startswith("starting the workers again takes")


def test_what_workers_take_to_end_goes_with_their_starts():
    """The request that ends an iteration waits for the workers to exit, outside of all steps."""
    tables = play(Run(**EPOCHS, restart_ms=400.0))
    without = found(diagnose(tables))["workers-restarted"]
    whole = [row["start_ns"] for row in tables.rows["fetches"] if row["batch"] == 0]
    steps = tables.rows["steps"]
    for number, begin_ns in enumerate(sorted(whole)[1:]):
        for name in ("steps", "batches", "fetches"):
            for row in tables.rows[name]:
                if row["start_ns"] >= begin_ns + number * 500 * MS:
                    row["start_ns"] += 500 * MS
        tables.add("fetches", rank=0, loader=0, epoch=number, batch=20, ended=1, wait_ns=500 * MS,
                   start_ns=begin_ns + number * 500 * MS, sampler_ns=-1, ready=0,
                   receive_ns=-1, receive_cpu_ns=-1)  # fmt: skip
    restarted = found(diagnose(tables))["workers-restarted"]
    assert restarted.title.endswith(", and ending them before it 0.5 s")
    assert restarted.seconds_lost == pytest.approx(without.seconds_lost + 4 * 0.5)
    epoch_ms = sum(row["wall_ns"] for row in steps[-20:]) / MS
    expected = (epoch_ms + 500) / (epoch_ms - 1e3 * restarted.evidence["seconds_each"])
    assert restarted.remedies[0].predicted_speedup == pytest.approx(expected, rel=0.05)
    assert restarted.remedies[0].predicted_speedup > without.remedies[0].predicted_speedup
